/* Entries of a peer's mapped table, as native code opens them: see peer.c. `peer` is a PeerTable. */
#ifndef XP_PEER_H
#define XP_PEER_H

#include "objects.h"

/* Hold the handle's entry, as `PeerTable.hold` does, and copy it. NULL without an exception if that is refused, or `peer`
 * is no PeerTable. */
PyObject *xp_peer_hold(const xp_types *types, PyObject *peer, const xp_handle *h, xp_entry *e);

/* Return whether the entry still belongs to the handle. */
bool xp_peer_stands(PyObject *peer, const xp_handle *h);

#endif
