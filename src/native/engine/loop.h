/* One thread of each process, which sleeps until an fd is ready, somebody kicks it, or it is time. It never takes the
 * GIL, and does not know what it works for. */
#ifndef XP_LOOP_H
#define XP_LOOP_H

#include "xp.h"

/* The object that it works for. `turn` and `ready` run on the thread. */
typedef struct {
    const char *name;
    uint64_t (*turn)(uint64_t now, bool kicked); /* before each sleep: until when to sleep at most */
    bool (*ready)(int kind, uint64_t serial, uint32_t index); /* of xp_loop_add; false: there is no such kind */
    void (*end)(void);    /* after the thread; with xp_life_mu */
    void (*robbed)(void); /* something in this process has closed the loop's fds; called without mutexes */
} xp_loop_work;

extern pthread_mutex_t xp_life_mu;

void xp_loop_init(const xp_loop_work *work); /* first of all */
int xp_loop_start(void);                     /* 0 or errno */
void xp_loop_stop(void);
bool xp_loop_running(void);
bool xp_loop_robbed(void);
void xp_loop_kick(void); /* its next turn is to be now */
/* Watch an fd. `kind` is 1 to 14, `serial` has 50 bits, `index` 10. Events may come late, when the fd is closed. 0, or -1
 * and errno (ESHUTDOWN: it does not run). */
int xp_loop_add(int fd, uint32_t events, int kind, uint64_t serial, uint32_t index);
void xp_loop_remove(int fd); /* to be called before the fd is closed, if others have a copy of it */
void xp_loop_fork_prepare(void); /* takes the loop's own mutex */
void xp_loop_fork_parent(void);
void xp_loop_forked(void);

#endif
