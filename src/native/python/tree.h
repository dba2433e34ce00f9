/* What hand_over.c does with Leaves, whose type is `types->leaves`. */
#ifndef XP_TREE_H
#define XP_TREE_H

#include "objects.h"

/* Place the arrays that are like earlier ones and lie in known allocations. The first that is not: its kind, and the
 * bytes that it spans. False, without or with an exception: there is none, or it was not viewed. */
bool xp_leaves_next(PyObject *leaves, uint32_t *kind, uint64_t *address, uint64_t *nbytes);
/* Other arrays may lie in that allocation, too. -1: an exception is set */
int xp_leaves_learn(PyObject *leaves, uint64_t start, uint64_t nbytes, PyObject *device, PyObject *allocation);

#endif
