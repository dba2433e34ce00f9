/* The relay: native threads that call drivers for whoever must not be held up by one. They never take the GIL. */
#ifndef XP_RELAY_H
#define XP_RELAY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct xp_job {
    struct xp_job *next;
    void (*run)(struct xp_job *job);
} xp_job;

int xp_relay_start(void);          /* 0 or errno: from here on there is a thread */
void xp_relay_post(xp_job *job);   /* blocks nobody; jobs of before a start run once there is a thread */
bool xp_relay_stop(uint64_t ns);   /* false: a driver keeps a thread for longer */
void xp_relay_fork_prepare(void);
void xp_relay_fork_parent(void);
void xp_relay_forked(void);

#endif
