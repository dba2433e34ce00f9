/* Other libraries' allocations: see foreign.c. */
#ifndef XP_FOREIGN_H
#define XP_FOREIGN_H

#include "objects.h"

bool xp_is_recogniser(const xp_types *types, PyObject *object);

/* Return the allocation that has those bytes on the device that it calls `info`, as `find` does: a new reference, or
 * NULL, perhaps with an exception set. `own`: an OwnTable, or NULL. */
PyObject *xp_recognise(const xp_types *types, PyObject *recogniser, PyObject *device, PyObject *info, uint64_t address,
                       uint64_t nbytes, PyObject *add, PyObject *own);

/* Return the remembered allocation that has those bytes, on the device that `info` describes, if the driver confirms
 * its number: a new reference, or NULL without an exception. */
PyObject *xp_recognised(PyObject *recogniser, PyObject *info, uint64_t address, uint64_t nbytes);

#endif
