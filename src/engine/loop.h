/* One thread of each process, which sleeps until an fd is ready, somebody wakes it, or a time has come. It never
 * takes the GIL, and does not know the work that it runs. */
#ifndef XP_LOOP_H
#define XP_LOOP_H

#include "xp.h"

/* The object whose work it runs. `turn` and `ready` run on the thread. */
typedef struct {
    const char *name;
    uint64_t (*turn)(uint64_t now, bool kicked); /* before each sleep: returns until when to sleep at most */
    bool (*ready)(int kind, uint64_t serial, uint32_t index); /* called with the arguments of xp_loop_add; returns false if there is no such kind */
    void (*end)(void);    /* after the thread has ended; with xp_life_mu */
    void (*robbed)(void); /* somebody in this process has closed the loop's fds; called without mutexes */
} xp_loop_work;

extern pthread_mutex_t xp_life_mu;

void xp_loop_init(const xp_loop_work *work); /* first of all */
int xp_loop_start(void);                     /* 0 or errno */
void xp_loop_stop(void);
bool xp_loop_running(void);
bool xp_loop_robbed(void);
void xp_loop_kick(void); /* have its next turn start now */
/* Watch an fd. `kind` is 1 to 14, `serial` has 50 bits, `index` has 10. Events may arrive late, after the fd was
 * closed. Returns 0, or -1 and errno (ESHUTDOWN: it does not run). */
int xp_loop_add(int fd, uint32_t events, int kind, uint64_t serial, uint32_t index);
void xp_loop_remove(int fd); /* call this before closing the fd, if others have a copy of it */
void xp_loop_fork_prepare(void); /* takes the loop's own mutex */
void xp_loop_fork_parent(void);
void xp_loop_forked(void);

#endif
