/* The relay: native threads that call drivers on behalf of threads that must not block. They never take the GIL. */
#ifndef XP_RELAY_H
#define XP_RELAY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct xp_job {
    struct xp_job *next;
    void (*run)(struct xp_job *job);
} xp_job;

int xp_relay_start(void);          /* 0: from now on there is a thread; otherwise errno */
void xp_relay_post(xp_job *job);   /* does not block; earlier jobs run once there is a thread */
bool xp_relay_stop(uint64_t ns);   /* does the posted jobs first; false if a driver blocks a thread for longer */
void xp_relay_fork_prepare(void);
void xp_relay_fork_parent(void);
void xp_relay_forked(void);

#endif
