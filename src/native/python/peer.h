/* Entries of a peer's mapped table, as native code opens them: see peer.c. `peer` is a PeerTable. */
#ifndef XP_PEER_H
#define XP_PEER_H

#include "objects.h"

/* A copy of the handle's entry. False: a native call cannot open it */
bool xp_peer_entry(PyObject *peer, const xp_handle *h, xp_entry *e);

/* A hold of the handle's entry, if it is live and its process, too. NULL without an exception where one call cannot tell */
PyObject *xp_peer_hold(const xp_types *types, PyObject *peer, const xp_handle *h);

/* Whether the entry is still that of the handle. */
bool xp_peer_stands(PyObject *peer, const xp_handle *h);

#endif
