/* Other libraries' allocations, as a driver tells of them by the addresses of its functions. */
#ifndef XP_FOREIGN_H
#define XP_FOREIGN_H

#include "objects.h"

#define XP_PAYLOAD sizeof(((xp_entry *)0)->payload)

typedef struct {
    uint64_t number, start, nbytes; /* of the allocation */
    uint64_t ordinal;               /* of its device */
    PyObject *allocation;           /* owned: what is known of it already; NULL: it is new */
    char payload[XP_PAYLOAD]; /* of its exports, where it is new */
    unsigned payload_nbytes;
} xp_foreign;

/* Whether `nbytes` at `address` are of an allocation that can be shared, on the device that `info` describes. False
 * without an exception: Python has to look. */
bool xp_recognise(const xp_types *types, PyObject *recogniser, PyObject *info, uint64_t address, uint64_t nbytes,
                  xp_foreign *found);
PyObject *xp_foreign_memory(PyObject *recogniser, const xp_foreign *found); /* what the adapter makes of a new one */
void xp_remember(PyObject *recogniser, const xp_foreign *found, PyObject *allocation);

#endif
