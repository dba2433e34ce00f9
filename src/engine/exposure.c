/* Exposure: which other processes may have memory that this process exported, and whether the memory may be reused. */
#include "exports.h"

#include <stdlib.h>

void xp_exposure_begin(xp_exposure *x)
{
    *x = (xp_exposure){.forks = XP_RELAXED(&xp_forks_begun), .born = XP_RELAXED(&xp_fork_count)};
    pthread_mutex_init(&x->mu, NULL);
}

static void return_entries(xp_exposure *x)
{
    while (x->count)
        xp_entry_return(x->exports, x->entries[--x->count]);
}

void xp_exposure_end(xp_exposure *x)
{
    return_entries(x);
    free(x->entries);
    pthread_mutex_destroy(&x->mu);
    if (x->exports)
        xp_exports_unref(x->exports);
}

/* Another thread may have had the mutex at the fork. */
static bool from_parent(const xp_exposure *x) { return x->born != XP_RELAXED(&xp_fork_count); }

/* Called with the mutex. The memory is never reused, so nobody asks who has it. */
static void spoil(xp_exposure *x)
{
    XP_STORE_RELAXED(&x->never, true);
    return_entries(x);
}

/* Called with the mutex. Return the entries that nobody has any more. `reap`: remove dead processes first; blocks. */
static void settle(xp_exposure *x, bool reap)
{
    xp_domain *d = x->exports->d;
    uint32_t left = 0;
    for (uint32_t i = 0; i < x->count; i++) {
        uint32_t entry = x->entries[i];
        if (xp_may_reach(d, entry) && (!reap || xp_reached(d, entry))) {
            x->entries[left++] = entry;
        } else if (xp_marked(d, entry)) { /* asked last, since a mark is set before a bit is cleared */
            while (i < x->count) /* this one, and those that were not checked */
                x->entries[left++] = x->entries[i++];
            x->count = left;
            spoil(x);
            return;
        } else {
            xp_entry_return(x->exports, entry);
        }
    }
    x->count = left;
}

/* Called with the mutex. */
static bool has_room(xp_exposure *x)
{
    if (x->count < x->room)
        return true;
    if (x->count)
        settle(x, false);
    if (x->never || (x->room && x->count <= x->room / 2))
        return !x->never;
    uint32_t room = x->room ? 2 * x->room : 4;
    uint32_t *entries = realloc(x->entries, room * sizeof *entries);
    if (entries) {
        x->entries = entries;
        x->room = room;
    }
    return entries != NULL;
}

/* Called with the mutex. */
static bool keep_entry(xp_exposure *x, xp_exports *t, uint32_t entry)
{
    if (!has_room(x)) {
        spoil(x);
        return false;
    }
    if (x->exports == NULL) {
        xp_exports_ref(t);
        x->exports = t;
    }
    x->entries[x->count++] = entry;
    return true;
}

bool xp_exposure_add(xp_exposure *x, xp_exports *t, uint32_t entry)
{
    bool added = false;
    if (XP_RELAXED(&x->never) || from_parent(x))
        return false;
    if (!xp_usable(t->d) || (!xp_may_reach(t->d, entry) && xp_marked(t->d, entry))) {
        xp_exposure_spoil(x);
    } else if (xp_may_reach(t->d, entry)) {
        pthread_mutex_lock(&x->mu);
        added = !x->never && keep_entry(x, t, entry);
        pthread_mutex_unlock(&x->mu);
    }
    return added;
}

int xp_exposure_state(xp_exposure *x)
{
    if (from_parent(x))
        return XP_EXPOSED_FOREVER;
    pthread_mutex_lock(&x->mu);
    if (x->forks != XP_RELAXED(&xp_forks_begun) || (x->count && !xp_usable(x->exports->d)))
        spoil(x);
    else if (x->count)
        settle(x, true);
    int state = x->never ? XP_EXPOSED_FOREVER : x->count ? XP_EXPOSED : XP_EXPOSED_NOT;
    pthread_mutex_unlock(&x->mu);
    return state;
}

void xp_exposure_spoil(xp_exposure *x)
{
    if (from_parent(x))
        return; /* it is spoilt in this process */
    pthread_mutex_lock(&x->mu);
    spoil(x);
    pthread_mutex_unlock(&x->mu);
}
