/* The relay: native threads that call drivers for those whom a driver must not hold up. They never take the GIL. */
#ifndef XP_RELAY_H
#define XP_RELAY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct xp_job {
    struct xp_job *next;
    void (*run)(struct xp_job *job);
} xp_job;

int xp_relay_start(void);          /* 0: from here on there is a thread; else errno */
void xp_relay_post(xp_job *job);   /* does not block; earlier jobs run once there is a thread */
bool xp_relay_stop(uint64_t ns);   /* does the posted jobs first; false: a driver blocks a thread for longer */
void xp_relay_fork_prepare(void);
void xp_relay_fork_parent(void);
void xp_relay_forked(void);

#endif
