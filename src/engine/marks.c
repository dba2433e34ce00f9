/* Marks of entries: somebody may reach what was exported there for longer than the masks of holders and users show. */
#include "events.h"

static unsigned forking; /* forks under way: what is opened now may also be open in the child */

void xp_mark(xp_domain *d, uint32_t entry)
{
    __atomic_fetch_or(&xp_opens_at(d, entry)->marks, XP_MARK_FOREVER, __ATOMIC_SEQ_CST);
}

void xp_own(xp_domain *d, uint32_t entry)
{
    __atomic_fetch_or(&xp_opens_at(d, entry)->marks, XP_MARK_FOREVER | XP_MARK_OWNED, __ATOMIC_SEQ_CST);
}

bool xp_owned(const xp_domain *d, uint32_t entry) { return XP_LOAD(&xp_opens_at(d, entry)->marks) & XP_MARK_OWNED; }

bool xp_marked(const xp_domain *d, uint32_t entry) { return XP_LOAD(&xp_opens_at(d, entry)->marks) != 0; }

void xp_clear_marks(xp_domain *d, uint32_t entry) { XP_STORE(&xp_opens_at(d, entry)->marks, 0); }

void xp_mark_at_fork(xp_domain *d, uint32_t entry)
{
    if (XP_UNLIKELY(XP_LOAD(&forking)))
        xp_mark(d, entry);
}

static void mark_counted(xp_domain *d, const xp_counts *counts)
{
    for (uint32_t i = 0; i < counts->length; i++)
        if (counts->at[i])
            xp_mark(d, i);
}

/* Called before the fork: this process may die right after it, and then nobody would know of the child. */
void xp_marks_fork_prepare(void)
{
    __atomic_fetch_add(&forking, 1, __ATOMIC_SEQ_CST);
    for (xp_domain *d = xp_domains; d; d = d->next) {
        pthread_mutex_lock(&d->mu);
        if (!d->owner && xp_usable(d)) {
            mark_counted(d, &d->holds);
            mark_counted(d, &d->users);
        }
        pthread_mutex_unlock(&d->mu);
    }
}

void xp_marks_fork_parent(void) { __atomic_fetch_sub(&forking, 1, __ATOMIC_SEQ_CST); }
