/* The entries of this process's table: which are free. */
#include "exports.h"

#include <stdlib.h>

#define RECYCLE_TRIES 8

/* One for all tables, of which a process has one, so that a fork can take it. */
pthread_mutex_t xp_exports_mu = PTHREAD_MUTEX_INITIALIZER;

xp_exports *xp_exports_new(char *base, xp_domain *d, const xp_handle *common)
{
    xp_exports *t = calloc(1, sizeof *t);
    uint32_t *entries = calloc(XP_ENTRIES, sizeof *entries);
    xp_export **exports = calloc(XP_ENTRIES, sizeof *exports);
    if (t == NULL || entries == NULL || exports == NULL) {
        free(t);
        free(entries);
        free(exports);
        return NULL;
    }
    xp_domain_ref(d);
    *t = (xp_exports){.refs = 1, .d = d, .base = base, .common = *common, .exports = exports, .free = entries};
    return t;
}

void xp_exports_ref(xp_exports *t) { __atomic_fetch_add(&t->refs, 1, __ATOMIC_RELAXED); }

void xp_exports_unref(xp_exports *t)
{
    if (__atomic_sub_fetch(&t->refs, 1, __ATOMIC_ACQ_REL))
        return;
    xp_domain_unref(t->d);
    free(t->free);
    free(t->exports);
    free(t);
}

static bool take_returned(xp_exports *t, uint32_t *entry)
{
    pthread_mutex_lock(&xp_exports_mu);
    bool found = t->count != 0;
    if (found) {
        *entry = t->free[t->first];
        t->first = (t->first + 1) % XP_ENTRIES;
        t->count--;
    }
    pthread_mutex_unlock(&xp_exports_mu);
    return found;
}

static bool take_unused(xp_exports *t, uint32_t *entry)
{
    pthread_mutex_lock(&xp_exports_mu);
    bool more = t->used < XP_ENTRIES;
    if (more)
        *entry = t->used++;
    pthread_mutex_unlock(&xp_exports_mu);
    return more;
}

static bool has_holders(xp_domain *d, uint32_t entry)
{
    uint32_t holders[XP_MEMBERS];
    return xp_holders(d, entry, holders) > 0;
}

int xp_entry_take(xp_exports *t, bool block, uint32_t *entry)
{
    /* An entry that a living importer still holds is not reused: the importer's bit would count for another export. */
    for (int i = 0; i < RECYCLE_TRIES && take_returned(t, entry); i++) {
        if (!xp_may_hold(t->d, *entry) || (block && !has_holders(t->d, *entry)))
            return XP_EXPORT_GOOD;
        xp_entry_return(t, *entry);
        if (!block)
            return XP_EXPORT_WOULD_BLOCK;
    }
    return take_unused(t, entry) ? XP_EXPORT_GOOD : XP_EXPORT_TABLE_FULL;
}

void xp_entry_return(xp_exports *t, uint32_t entry)
{
    pthread_mutex_lock(&xp_exports_mu);
    if (t->count < XP_ENTRIES)
        t->free[(t->first + t->count++) % XP_ENTRIES] = entry;
    pthread_mutex_unlock(&xp_exports_mu);
}

/* A child's only thread may use a table of its own at once, whatever other threads were doing at the fork. */
void xp_exports_fork_prepare(void) { pthread_mutex_lock(&xp_exports_mu); }
void xp_exports_fork_parent(void) { pthread_mutex_unlock(&xp_exports_mu); }
