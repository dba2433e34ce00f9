/* The word on which members sleep until another changes something: docs/channels-protocol.md. */
#ifndef XP_BELL_H
#define XP_BELL_H

#include "xp.h"

/* Members sleep on this word. A member that changes the words wakes them. */
typedef struct {
    uint32_t seq, sleepers; /* sleepers: 1 if somebody may sleep on `seq` */
} xp_bell;

void xp_ring(xp_bell *bell);        /* if anybody sleeps */
void xp_ring_always(xp_bell *bell); /* the record of sleepers may be lost */

#endif
