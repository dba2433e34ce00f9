/* The warden: the work of a process's loop. It serves importers, detects deaths of members, polls for points that
 * devices complete, reports tokens, and gives cached memory back. */
#include "group.h"
#include "events.h"
#include "exports.h"
#include "loop.h"
#include "name_lock.h"
#include "relay.h"

#define POLL_FIRST_NS 20000u
#define POLL_SLOWLY_NS 1000000u /* from here on the step grows slowly, so that no wait becomes much longer by it */
#define POLL_LAST_NS 8000000u
#define GUARD_LAST_NS 50000000u /* a guard alone only needs to know when it may end: deaths are reported anyway */
#define RETRY_NS 10000000u
#define LOCKS_NS 200000000u

static struct { /* the thread's */
    uint64_t poll_at, step, locks_at, retry;
    bool look; /* something was ready that nodes may have waited for */
} T = {XP_FOREVER, POLL_FIRST_NS, XP_FOREVER, RETRY_NS, false};

static void on_pidfd(xp_domain *d, uint32_t m)
{
    pthread_mutex_lock(&d->mu);
    if (xp_watched_ends(&d->ms, m)) {
        xp_unwatch(&d->ms, m);
        xp_reap(d, m, true);
        if (xp_alive(&d->ms, m)) /* another member has the index by now */
            xp_watch(d, m);
    }
    pthread_mutex_unlock(&d->mu);
    T.retry = RETRY_NS;
}

static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Check the members whose death no pidfd can show, and dead members that are not reaped yet. Returns when to check
 * again. */
static uint64_t check_locks(bool act, uint64_t retry_ns)
{
    uint64_t again = XP_FOREVER, after = 0;
    for (;;) { /* one domain at a time, by serial number, so that xp_mu is not held while members are reaped */
        xp_domain *d = NULL;
        pthread_mutex_lock(&xp_mu);
        for (xp_domain *o = xp_domains; o; o = o->next)
            if (o->serial > after && (d == NULL || o->serial < d->serial))
                d = o;
        if (d)
            xp_domain_ref(d);
        bool waited = d && xp_nodes_wait(d);
        pthread_mutex_unlock(&xp_mu);
        if (d == NULL)
            return again;
        after = d->serial;
        bool unopened = waited && XP_LOAD(&d->unopened);
        if (act && unopened) {
            XP_STORE(&d->unopened, 0); /* a process that still waits for that sets it again */
            XP_STORE(&d->rescan, 1);
        }
        uint64_t looked[XP_MASK_WORDS];
        for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
            looked[i] = act ? XP_LOAD(&d->retry[i]) | (waited ? XP_LOAD(&d->polled[i]) : 0) : 0;
        XP_EACH(looked, m) {
            pthread_mutex_lock(&d->mu);
            if (xp_reap_by_steps(d, m)) /* even if it cannot be reaped: its death counts all the same */
                XP_STORE(&d->rescan, 1);
            else if (!xp_alive(&d->ms, m))
                xp_clear(d->polled, m);
            pthread_mutex_unlock(&d->mu);
        }
        if (xp_next(d->retry, 0) < XP_MEMBERS)
            again = sooner(again, retry_ns);
        else if (unopened || (waited && xp_next(d->polled, 0) < XP_MEMBERS))
            again = sooner(again, LOCKS_NS);
        xp_domain_unref(d);
    }
}

static uint64_t turn(uint64_t now, bool kicked)
{
    bool look = kicked || T.look, polling = now >= T.poll_at;
    T.look = false;
    if (look || now >= T.locks_at) {
        uint64_t again = check_locks(now >= T.locks_at, T.retry);
        if (now >= T.locks_at)
            T.retry = T.retry < LOCKS_NS ? T.retry * 2 : LOCKS_NS;
        uint64_t next = again == XP_FOREVER ? XP_FOREVER : now + again;
        T.locks_at = now >= T.locks_at || next < T.locks_at || again == XP_FOREVER ? next : T.locks_at;
        look = true;
    }
    if (look || polling) {
        if (look)
            T.step = POLL_FIRST_NS;
        int wanted = xp_nodes_look();
        uint64_t last = wanted == 1 ? GUARD_LAST_NS : POLL_LAST_NS;
        T.step = sooner(T.step, last);
        T.poll_at = wanted ? xp_now() + T.step : XP_FOREVER;
        T.step = sooner(T.step + T.step / (wanted == 1 || T.step < POLL_SLOWLY_NS ? 2 : 256), last);
    }
    return sooner(sooner(T.poll_at, T.locks_at), sooner(xp_connections_check(now), xp_trim_old(now)));
}

static bool ready(int kind, uint64_t serial, uint32_t index)
{
    if (kind == XP_READY_LISTEN)
        xp_on_listen(index, xp_now());
    else if (kind == XP_READY_CONNECTION)
        xp_on_connection(serial, index);
    else if (kind == XP_READY_GROUP)
        xp_group_ready(serial, index);
    bool of_domain = kind == XP_READY_BELL || kind == XP_READY_PIDFD;
    xp_domain *d = of_domain ? xp_domain_find(serial) : NULL;
    if (d) {
        if (kind == XP_READY_PIDFD)
            on_pidfd(d, index);
        XP_STORE(&d->rescan, 1);
        T.look = true;
        xp_domain_unref(d);
    }
    return of_domain || kind == XP_READY_LISTEN || kind == XP_READY_CONNECTION || kind == XP_READY_GROUP;
}

static void end(void)
{
    xp_serving_stop();
    xp_trim(); /* nobody is left to do it later */
    pthread_mutex_lock(&xp_mu);
    for (xp_domain *d = xp_domains; d; d = d->next) {
        pthread_mutex_lock(&d->mu);
        xp_unwatch_all(&d->ms);
        xp_unwatch_bell(d);
        pthread_mutex_unlock(&d->mu);
        XP_STORE(&d->rescan, 1); /* for the next warden, and the remains of this one */
    }
    xp_groups_end();
    pthread_mutex_unlock(&xp_mu);
}

/* --- fork --------------------------------------------------------------------------------------------------------- */

static void fork_prepare(void)
{
    pthread_mutex_lock(&xp_life_mu);
    pthread_mutex_lock(&xp_mu);
    xp_marks_fork_prepare();
    xp_loop_fork_prepare();
    xp_relay_fork_prepare();
    xp_kept_fork_prepare();
    xp_life_locks_fork_prepare();
    xp_name_locks_fork_prepare();
    xp_exports_fork_prepare();
}

static void fork_parent(void)
{
    xp_exports_fork_parent();
    xp_name_locks_fork_parent();
    xp_life_locks_fork_parent();
    xp_kept_fork_parent();
    xp_relay_fork_parent();
    xp_loop_fork_parent();
    xp_marks_fork_parent();
    pthread_mutex_unlock(&xp_mu);
    pthread_mutex_unlock(&xp_life_mu);
}

static void fork_child(void)
{
    XP_STORE(&xp_fork_count, xp_fork_count + 1);
    xp_serving_forked();
    xp_loop_forked();
    xp_domains_forked();
    xp_groups_forked();
    xp_life_locks_forked();
    xp_name_locks_forked();
    xp_nodes_forked();
    xp_relay_forked();
    xp_kept_forked();
    fork_parent(); /* the child's only thread is the one that locked them */
}

static void init(void)
{
    static const xp_loop_work work = {"xpushare-warden", turn, ready, end, xp_rob};
    xp_loop_init(&work);
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

void xp_engine_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init);
}
