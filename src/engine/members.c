/* The domains of this process, one for each commons that it belongs to, and which of their members live. */
#include "events.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_COUNTS 256u

pthread_mutex_t xp_mu = PTHREAD_MUTEX_INITIALIZER;
xp_domain *xp_domains;

void xp_domain_ref(xp_domain *d) { __atomic_fetch_add(&d->refs, 1, __ATOMIC_RELAXED); }

void xp_domain_unref(xp_domain *d)
{
    if (__atomic_sub_fetch(&d->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (d->base)
        munmap(d->base, XP_COMMONS_SIZE);
    if (d->bell >= 0)
        close(d->bell);
    if (d->last_fd > 0)
        close(d->last_fd);
    free(d->released);
    free(d->holds.at);
    free(d->users.at);
    free(d->attaches.at);
    free(d->able.at);
    free(d->acts);
    free(d->slots_live);
    free(d);
}

xp_domain *xp_domain_find(uint64_t serial)
{
    pthread_mutex_lock(&xp_mu);
    xp_domain *d = xp_domains;
    while (d && d->serial != serial)
        d = d->next;
    if (d)
        xp_domain_ref(d);
    pthread_mutex_unlock(&xp_mu);
    return d;
}

void xp_domain_unlist(xp_domain *d)
{
    for (xp_domain **p = &xp_domains; *p; p = &(*p)->next)
        if (*p == d) {
            *p = d->next;
            return;
        }
}

const char *xp_domain_wrong(const xp_domain *d)
{
    if (xp_usable(d))
        return NULL;
    int left = XP_RELAXED(&d->left);
    return left & XP_ROBBED ? XP_ROBBED_TEXT : left ? XP_LEFT_TEXT : "it is from before a fork";
}

void (*xp_on_robbed)(void);

void xp_rob(void)
{
    static unsigned told; /* 1 + the fork count then */
    pthread_mutex_lock(&xp_mu);
    for (xp_domain *d = xp_domains; d; d = d->next)
        __atomic_fetch_or(&d->left, XP_ROBBED, __ATOMIC_SEQ_CST);
    bool tell = told != xp_fork_count + 1;
    told = xp_fork_count + 1;
    pthread_mutex_unlock(&xp_mu);
    if (tell && xp_on_robbed)
        xp_on_robbed();
}

bool xp_stands(xp_domain *d)
{
    struct stat found;
    int fd = XP_RELAXED(&d->fd);
    if (fd < 0 || (fstat(fd, &found) == 0 && found.st_dev == d->dev && found.st_ino == d->ino))
        return fd >= 0;
    if (XP_LOAD(&d->left) == 0)
        xp_rob();
    return false;
}

/* In a child: close the commons' fds at once, since closing one later would drop the locks that the child takes by
 * its own fd. */
void xp_domains_forked(void)
{
    for (xp_domain *d = xp_domains; d; d = d->next) {
        if (d->fd >= 0)
            close(d->fd);
        xp_membership_forked(&d->ms);
    }
    xp_domains = NULL;
}

/* They grow as needed: making a whole MiB at the first contact with an exporter would take much of the time. */
bool xp_counts_reach(xp_counts *counts, uint32_t i)
{
    uint32_t length = counts->length ? counts->length : FIRST_COUNTS;
    if (i < counts->length)
        return true;
    while (length <= i)
        length *= 2;
    uint32_t *at = calloc(length, sizeof *at), *before = counts->at;
    if (at == NULL)
        return false;
    if (before)
        memcpy(at, before, counts->length * sizeof *at);
    counts->at = at; /* in this order: a fork may come at any moment, and the child must find what was allocated */
    counts->length = length;
    free(before);
    return true;
}

/* Each process counts its own holds and attachments, so that one bit covers all its opens of an entry or slot. */
bool xp_count_in(xp_domain *d, xp_counts *counts, uint32_t i, uint64_t *mask)
{
    pthread_mutex_lock(&d->mu);
    bool ok = xp_counts_reach(counts, i) && XP_LOAD(&d->left) == 0;
    if (ok && counts->at[i]++ == 0)
        xp_set(mask, d->member);
    d->uses += ok;
    pthread_mutex_unlock(&d->mu);
    return ok;
}

void xp_count_out(xp_domain *d, xp_counts *counts, uint32_t i, uint64_t *mask)
{
    pthread_mutex_lock(&d->mu);
    if (i < counts->length && counts->at[i]) {
        d->uses--;
        if (--counts->at[i] == 0)
            xp_clear(mask, d->member);
    }
    pthread_mutex_unlock(&d->mu);
}

/* The owner knows its own state, whatever the others have made of its records. */
uint32_t xp_slots_used(const xp_domain *d)
{
    uint32_t used = XP_LOAD(d->owner ? &d->next_slot : &((xp_commons *)d->base)->slots_used);
    return used < XP_SLOTS ? used : XP_SLOTS;
}

/* --- alive or dead ------------------------------------------------------------------------------------------------ */

bool xp_unreaped(xp_domain *d, const uint64_t *mask)
{
    int pid;
    XP_EACH(d->retry, m)
        if (xp_bit(mask, m) && xp_life(&d->ms, m, &pid) == XP_DEAD)
            return true;
    return false;
}

bool xp_look(xp_domain *d, uint32_t m, int *pid, uint64_t *since, bool *alive)
{
    xp_member *record = xp_member_at(d, m);
    if (XP_LOAD(&record->state) == 0)
        return false;
    pthread_mutex_lock(&d->mu);
    int life = xp_life(&d->ms, m, pid);
    pthread_mutex_unlock(&d->mu);
    *since = XP_RELAXED(&record->attached_ns);
    *alive = life <= XP_DYING;
    return life != XP_NOBODY;
}
