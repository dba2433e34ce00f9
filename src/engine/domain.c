/* Membership in a commons: joining and leaving it, holders and slots. */
#include "events.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- joining and leaving ------------------------------------------------------------------------------------------ */

/* Try one index. Returns 1 if it is ours, 0 to try another, -1 and errno on failure. Nobody else has the domain yet. */
static int claim(xp_domain *d, uint32_t m)
{
    int rc = xp_lock(d->fd, XP_REAP_BYTE + (int64_t)m, true), ours = 0;
    if (rc) {
        errno = rc;
        return rc == EAGAIN ? 0 : -1;
    }
    if (xp_vacant(d, m)) {
        xp_member *record = xp_member_at(d, m);
        XP_STORE(&record->state, 0);
        rc = xp_lock(d->fd, XP_LIFE_BYTE + (int64_t)m, true);
        if (rc == 0) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            XP_STORE_RELAXED(&record->pid, (uint32_t)getpid());
            XP_STORE_RELAXED(&record->pid_namespace, xp_pid_namespace());
            XP_STORE_RELAXED(&record->attached_ns, (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
            d->member = m;
            XP_STORE(&record->state, 1);
            ours = 1;
        } else if (rc != EAGAIN) {
            ours = -1;
        }
    }
    xp_lock(d->fd, XP_REAP_BYTE + (int64_t)m, false);
    errno = rc;
    return ours;
}

static bool map_commons(xp_domain *d, xp_error *error)
{
    xp_memfd wanted = {.nbytes = XP_COMMONS_SIZE, .exact = true};
    struct stat st;
    if ((d->base = xp_map_memfd(d->fd, &wanted, true, &st, error)) == NULL)
        return false;
    d->records = d->base + XP_COMMONS_MEMBERS;
    d->dev = st.st_dev;
    d->ino = st.st_ino;
    xp_commons *c = (xp_commons *)d->base;
    if (d->owner) {
        memcpy(c->cookie, d->cookie, XP_COOKIE);
        c->version = XP_VERSION;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        memcpy(c->magic, XP_COMMONS_MAGIC, sizeof c->magic);
    } else if (memcmp(c->magic, XP_COMMONS_MAGIC, sizeof c->magic) != 0 || c->version != XP_VERSION) {
        return xp_failed(error, 0, "not a commons of this version");
    } else if (memcmp(c->cookie, d->cookie, XP_COOKIE) != 0) {
        return xp_failed(error, 0, "the commons of another exporter (its cookie differs)");
    }
    return true;
}

static bool join(xp_domain *d, xp_error *error)
{
    if (!map_commons(d, error))
        return false;
    bool known = false;
    pthread_mutex_lock(&xp_mu);
    for (xp_domain *o = xp_domains; o && !known; o = o->next)
        known = o->dev == d->dev && o->ino == d->ino;
    if (!known) {
        d->next = xp_domains;
        xp_domains = d;
    }
    pthread_mutex_unlock(&xp_mu);
    if (known)
        return xp_failed(error, 0, "this process is a member of that commons already");
    int rc = 0;
    pthread_mutex_lock(&d->mu);
    if (d->owner)
        rc = claim(d, 0);
    for (uint32_t m = 1; m < XP_MEMBERS && !d->owner && rc == 0; m++)
        rc = claim(d, m);
    int code = rc < 0 ? errno : d->owner ? EAGAIN : ENOSPC;
    if (rc == 1) {
        /* An exec must end the membership, whoever gave us the fds. */
        fcntl(d->fd, F_SETFD, FD_CLOEXEC);
        fcntl(d->bell, F_SETFD, FD_CLOEXEC);
        XP_STORE(&d->left, 0);
    }
    pthread_mutex_unlock(&d->mu);
    if (rc == 1)
        return true;
    pthread_mutex_lock(&xp_mu);
    xp_domain_unlist(d);
    pthread_mutex_unlock(&xp_mu);
    return xp_failed(error, code, "joining the commons");
}

xp_domain *xp_join(int fd, int bell, const uint8_t *cookie, bool owner, xp_error *error)
{
    static uint64_t serials;
    xp_domain *d = calloc(1, sizeof *d);
    if (d == NULL) {
        xp_failed(error, ENOMEM, NULL);
        return NULL;
    }
    d->refs = 1;
    d->left = XP_LEFT;
    d->owner = owner;
    d->member = XP_NO_MEMBER;
    d->fd = fd;
    d->born = XP_RELAXED(&xp_fork_count);
    d->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
    memcpy(d->cookie, cookie, XP_COOKIE);
    pthread_mutex_init(&d->mu, NULL);
    d->count = XP_MEMBERS;
    d->ready = XP_READY_PIDFD;
    d->record_nbytes = sizeof(xp_member);
    d->seen = d->others;
    if (owner) {
        d->released = malloc(XP_SLOTS * sizeof *d->released);
        d->slots_live = calloc(XP_SLOTS / 64, sizeof *d->slots_live);
    }
    d->acts = calloc(XP_SLOTS, sizeof *d->acts);
    bool short_of = d->acts == NULL || (owner && (d->released == NULL || d->slots_live == NULL));
    bool good = short_of ? xp_failed(error, ENOMEM, NULL) : true;
    d->bell = bell;
    if (good && join(d, error))
        return d;
    d->bell = -1; /* the caller keeps the fds */
    xp_domain_unref(d);
    return NULL;
}

static bool has_any(const xp_counts *counts)
{
    uint32_t i = 0;
    while (i < counts->length && counts->at[i] == 0)
        i++;
    return i < counts->length;
}

void xp_leave(xp_domain *d)
{
    if (d->born != XP_RELAXED(&xp_fork_count))
        return; /* the fork handler closed the fds; the mapping is released with the last reference */
    if (d->owner)
        xp_serving_end(d);
    pthread_mutex_lock(&xp_mu);
    int left = __atomic_fetch_or(&d->left, XP_LEFT, __ATOMIC_SEQ_CST);
    if (left & XP_LEFT) {
        pthread_mutex_unlock(&xp_mu);
        return;
    }
    xp_domain_unlist(d);
    xp_nodes_drop(d, NULL);
    pthread_mutex_unlock(&xp_mu);
    pthread_mutex_lock(&d->mu);
    if (left & XP_ROBBED) { /* the rest is not ours to close: other members find us dead */
        d->fd = d->bell = -1;
        pthread_mutex_unlock(&d->mu);
        return;
    }
    XP_STORE(&xp_member_at(d, d->member)->state, XP_EXITING);
    /* Until our process has ended, its threads and devices may work with what it still has open. Marked, too: what is no
     * longer listed is not marked at a fork. The owner's end has to be seen at once, and its memory is its own. */
    bool keeps = !d->owner && (has_any(&d->holds) || has_any(&d->users));
    bool all = xp_sweep_out(d, d->member, XP_CAUSE_EXIT, 0, UINT32_MAX, XP_REACH_UNSEEN | (keeps ? XP_REACH_KEPT : 0));
    xp_unwatch_all(&d->ms);
    xp_unwatch_bell(d);
    if (all) {
        XP_STORE(&xp_member_at(d, d->member)->state, 0);
        close(d->fd); /* drops the lock */
    } else if (!keeps) { /* Other members find us dead once this is closed or our process has ended, and mark the rest as
                          * lost when they can. */
        d->last_fd = d->fd;
    } /* else nobody closes it: the others find us dead when our process ends */
    d->fd = -1;
    pthread_mutex_unlock(&d->mu);
}

bool xp_leave_if_idle(xp_domain *d)
{
    pthread_mutex_lock(&d->mu);
    bool idle = d->uses == 0;
    if (idle) /* from here on, xp_count_in counts nobody */
        __atomic_fetch_or(&d->left, XP_LEAVING, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&d->mu);
    if (idle)
        xp_leave(d);
    return idle;
}

long xp_reap_all(xp_domain *d)
{
    long count = 0;
    pthread_mutex_lock(&d->mu);
    for (uint32_t m = 0; m < XP_MEMBERS; m++)
        if (m != d->member && XP_LOAD(&xp_member_at(d, m)->state) != 0)
            count += xp_reap(d, m, false) == 1;
    pthread_mutex_unlock(&d->mu);
    return count;
}

/* --- holders and opens -------------------------------------------------------------------------------------------- */

static uint64_t *holders_at(const xp_domain *d, uint32_t entry)
{
    return (uint64_t *)(d->base + XP_COMMONS_HOLDERS) + (size_t)entry * XP_MASK_WORDS;
}

static uint64_t *users_at(const xp_domain *d, uint32_t entry)
{
    return (uint64_t *)(d->base + XP_COMMONS_USERS) + (size_t)entry * XP_MASK_WORDS;
}

static void reach_to(uint32_t *used, uint32_t entry)
{
    uint32_t old = XP_LOAD(used);
    for (int i = 0; i < XP_TRIES && old <= entry && !XP_CAS(used, &old, entry + 1); i++)
        ;
}

static bool counted(xp_domain *d, xp_counts *counts, uint32_t entry, uint64_t *mask)
{
    if (!xp_count_in(d, counts, entry, mask))
        return false;
    xp_mark_at_fork(d, entry);
    return true;
}

bool xp_hold(xp_domain *d, uint32_t entry)
{
    reach_to(&((xp_commons *)d->base)->entries_used, entry);
    return counted(d, &d->holds, entry, holders_at(d, entry));
}

bool xp_use(xp_domain *d, uint32_t entry)
{
    reach_to(&((xp_commons *)d->base)->users_used, entry);
    return counted(d, &d->users, entry, users_at(d, entry));
}

void xp_unuse(xp_domain *d, uint32_t entry) { xp_count_out(d, &d->users, entry, users_at(d, entry)); }

void xp_drop(xp_domain *d, uint32_t entry) { xp_count_out(d, &d->holds, entry, holders_at(d, entry)); }

bool xp_may_hold(const xp_domain *d, uint32_t entry)
{
    return xp_next(holders_at(d, entry), 0) < XP_MEMBERS;
}

uint32_t xp_holders(xp_domain *d, uint32_t entry, uint32_t *found)
{
    uint64_t *mask = holders_at(d, entry);
    uint32_t n = 0;
    pthread_mutex_lock(&d->mu);
    XP_EACH(mask, m) {
        if (m == d->member)
            continue;
        xp_reap(d, m, false);
        if (xp_alive(&d->ms, m))
            found[n++] = m;
    }
    pthread_mutex_unlock(&d->mu);
    return n;
}

/* Masks that nobody has used are not read: the kernel would have to make their pages. */
bool xp_may_use(const xp_domain *d, uint32_t entry)
{
    return entry < XP_LOAD(&((xp_commons *)d->base)->users_used) && xp_next(users_at(d, entry), 0) < XP_MEMBERS;
}

bool xp_may_reach(const xp_domain *d, uint32_t entry) { return xp_may_hold(d, entry) || xp_may_use(d, entry); }

bool xp_reached(xp_domain *d, uint32_t entry)
{
    uint64_t *masks[] = {holders_at(d, entry), users_at(d, entry)};
    pthread_mutex_lock(&d->mu);
    for (int i = 0; i < 1 + xp_may_use(d, entry); i++)
        XP_EACH(masks[i], m)
            xp_reap(d, m, false);
    pthread_mutex_unlock(&d->mu);
    return xp_may_reach(d, entry);
}

void xp_set_opens(xp_domain *d, uint32_t entry, int32_t count)
{
    XP_STORE(&xp_opens_at(d, entry)->left, count);
    XP_STORE(&xp_opens_at(d, entry)->renewed, 0);
}

bool xp_take_open(xp_domain *d, uint32_t entry)
{
    int32_t *opens = &xp_opens_at(d, entry)->left, left = XP_LOAD(opens);
    for (int i = 0; i < XP_TRIES && left > 0; i++)
        if (XP_CAS(opens, &left, left - 1))
            return true;
    return false;
}

void xp_give_open(xp_domain *d, uint32_t entry)
{
    int32_t *opens = &xp_opens_at(d, entry)->left, left = XP_LOAD(opens);
    for (int i = 0; i < XP_TRIES && left < INT32_MAX; i++)
        if (XP_CAS(opens, &left, left < 0 ? 1 : left + 1))
            return;
}

void xp_renew(xp_domain *d, uint32_t entry, uint64_t until)
{
    uint64_t *renewed = &xp_opens_at(d, entry)->renewed, found = XP_LOAD(renewed);
    for (int i = 0; i < XP_TRIES && found < until; i++)
        if (XP_CAS(renewed, &found, until))
            break;
    xp_give_open(d, entry);
}

uint64_t xp_renewed(xp_domain *d, uint32_t entry) { return XP_LOAD(&xp_opens_at(d, entry)->renewed); }

int32_t xp_opens_left(xp_domain *d, uint32_t entry)
{
    int32_t left = XP_LOAD(&xp_opens_at(d, entry)->left);
    return left > 0 ? left : 0;
}

/* --- slots -------------------------------------------------------------------------------------------------------- */

/* Return true if no living member is attached. Clears the bits of dead ones. Called with d->mu. */
static bool slot_free(xp_domain *d, uint32_t index)
{
    uint64_t *mask = xp_words_at(d, index)->attached;
    XP_EACH(mask, m) {
        if (xp_alive(&d->ms, m))
            return false;
        xp_clear(mask, m);
    }
    return true;
}

/* Return the first of at most `most` released slots that nobody uses any more, or XP_SLOTS if there is none. Called
 * with d->mu. */
static uint32_t recycle(xp_domain *d, uint32_t most)
{
    for (uint32_t i = d->released_count < most ? d->released_count : most; i; i--) {
        uint32_t index = d->released[d->released_at];
        bool usable = slot_free(d, index);
        d->released_at = (d->released_at + 1) % XP_SLOTS;
        if (usable) {
            d->released_count--;
            return index;
        }
        d->released[(d->released_at + d->released_count - 1) % XP_SLOTS] = index;
    }
    return XP_SLOTS;
}

static void clear_slot(xp_domain *d, uint32_t index)
{
    xp_words *w = xp_words_at(d, index);
    XP_STORE(&w->pending, 0);
    XP_STORE(&w->lost, 0);
    XP_STORE(&w->value, 0);
    XP_STORE(&w->roster, 0);
    XP_STORE(xp_pickles_at(d, index), 0);
    XP_STORE(&w->waiters, 0);
    XP_STORE(&w->async_waiters, 0);
    XP_STORE(&w->cause, 0);
    XP_STORE(&w->blame, 0);
    XP_STORE(&w->device, 0);
    XP_STORE(&w->guards, 0);
    for (uint32_t i = 0; i < XP_FACTS; i++)
        XP_STORE(&w->facts[i], 0);
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++) {
        XP_STORE(&xp_roles_at(d, index)->signallers[i], 0);
        XP_STORE(&xp_roles_at(d, index)->candidates[i], 0);
    }
}

uint32_t xp_new_slot(xp_domain *d)
{
    pthread_mutex_lock(&d->mu);
    uint32_t index = recycle(d, 16);
    if (index == XP_SLOTS && d->next_slot < XP_SLOTS) {
        index = d->next_slot;
        XP_STORE(&d->next_slot, index + 1);
        XP_STORE(&((xp_commons *)d->base)->slots_used, index + 1);
    }
    if (index == XP_SLOTS)
        index = recycle(d, XP_SLOTS);
    if (index < XP_SLOTS) {
        clear_slot(d, index);
        d->slots_live[index / 64] |= 1ull << index % 64;
    }
    pthread_mutex_unlock(&d->mu);
    return index;
}

bool xp_release_slot(xp_domain *d, uint32_t index)
{
    pthread_mutex_lock(&d->mu);
    bool live = index < XP_SLOTS && (d->slots_live[index / 64] >> index % 64 & 1);
    if (live) {
        d->slots_live[index / 64] &= ~(1ull << index % 64);
        d->released[(d->released_at + d->released_count++) % XP_SLOTS] = index;
    }
    pthread_mutex_unlock(&d->mu);
    return live;
}
