/* Entries of a peer's mapped table, as native code opens them: see peer.c. `peer` is a PeerTable. */
#ifndef XP_PEER_H
#define XP_PEER_H

#include "objects.h"

/* Copy the handle's entry. Returns false if a native call cannot open it. */
bool xp_peer_entry(PyObject *peer, const xp_handle *h, xp_entry *e);

/* Hold the handle's entry, if the entry and its process are live. NULL without an exception if one call cannot tell. */
PyObject *xp_peer_hold(const xp_types *types, PyObject *peer, const xp_handle *h);

/* Return whether the entry still belongs to the handle. */
bool xp_peer_stands(PyObject *peer, const xp_handle *h);

#endif
