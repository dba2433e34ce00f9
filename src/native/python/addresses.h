/* Allocations by their addresses: see addresses.c. */
#ifndef XP_ADDRESSES_H
#define XP_ADDRESSES_H

#include "resources.h"

bool xp_is_addresses(const xp_types *types, PyObject *object);

/* Return the living allocation at that address: a new reference, or NULL without an exception. */
PyObject *xp_address_find(PyObject *map, uint64_t address);

#endif
