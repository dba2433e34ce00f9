/* Who may still signal a point that nobody has submitted: docs/events-protocol.md, "Signallers". */
#include "events.h"

static inline uint32_t joined_in(uint64_t roster) { return (uint32_t)(roster & XP_ROSTER_JOINED) >> XP_ROSTER_JOINED_BIT; }

static inline uint64_t with(uint64_t roster, uint64_t loss, uint32_t joined)
{
    roster &= ~(uint64_t)(XP_ROSTER_LOSS | XP_ROSTER_JOINED);
    return (roster | loss | (uint64_t)joined << XP_ROSTER_JOINED_BIT) + XP_ROSTER_CHANGE;
}

/* Return whether the mask has anybody but `m`. */
static bool anybody_but(const uint64_t *mask, uint32_t m)
{
    uint32_t first = xp_next(mask, 0);
    return (first == m ? xp_next(mask, m + 1) : first) < XP_MEMBERS;
}

/* Called with d->mu. Set the bit again if its member is seen alive: another member has got the index. */
static bool others_alive(xp_domain *d, const uint64_t *mask)
{
    XP_EACH(mask, m)
        if (m != d->member && xp_alive(&d->ms, m) && xp_bit(mask, m))
            return true;
    return false;
}

/* At one moment: a process may have joined while the last one died, after the mask was read. */
static bool nobody_alive(xp_domain *d, const uint64_t *mask)
{
    return !others_alive(d, mask) && !others_alive(d, mask);
}

/* --- pickles that wait for their first open ------------------------------------------------------------------------ */

void xp_pickle_made(xp_slot *s, uint64_t until)
{
    uint64_t *pickles = xp_pickles_at(s->d, s->index), old = XP_LOAD(pickles), newest = until / 1000000;
    for (int i = 0; i < XP_TRIES; i++) {
        uint64_t count = old & XP_PICKLES_COUNT, last = old >> XP_PICKLES_UNTIL_BIT;
        count += count < XP_PICKLES_COUNT;
        if (XP_CAS(pickles, &old, (last > newest ? last : newest) << XP_PICKLES_UNTIL_BIT | count))
            break;
    }
}

void xp_pickle_taken(xp_slot *s)
{
    uint64_t *pickles = xp_pickles_at(s->d, s->index), old = XP_LOAD(pickles);
    for (int i = 0; i < XP_TRIES && old & XP_PICKLES_COUNT && !XP_CAS(pickles, &old, old - 1); i++)
        ;
}

bool xp_pickles_wait(const xp_slot *s) { return XP_LOAD(xp_pickles_at(s->d, s->index)) & XP_PICKLES_COUNT; }

/* Return whether there is a pickle that may still be opened. If the last one has expired, note that now. Called with
 * d->mu. */
static bool opener_may_come(xp_slot *s)
{
    uint64_t *pickles = xp_pickles_at(s->d, s->index), found = XP_LOAD(pickles);
    if (XP_LIKELY(!(found & XP_PICKLES_COUNT)) || xp_now() / 1000000 < found >> XP_PICKLES_UNTIL_BIT)
        return found & XP_PICKLES_COUNT;
    if (!(found & XP_PICKLES_OPENED))
        xp_roster_leave(s->d, s->index, XP_NO_MEMBER, XP_CAUSE_UNOPENED, false);
    XP_CAS(pickles, &found, 0); /* last: until then, the next process to check does it again */
    return false;
}

bool xp_future_lost(xp_slot *s, const xp_view *v)
{
    xp_domain *d = s->d;
    const xp_roles *r = s->roles;
    pthread_mutex_lock(&d->mu);
    bool awaited = opener_may_come(s);
    uint64_t roster = XP_LOAD(&s->w->roster), loss = roster & XP_ROSTER_LOSS;
    uint32_t joined = joined_in(roster);
    if (joined && joined != d->member + 1)
        loss = 0; /* somebody else came since */
    bool signalled = anybody_but(r->signallers, XP_NO_MEMBER);
    bool gone = d->member != 0 && !xp_alive(&d->ms, 0);
    bool lost = loss || gone || xp_unreaped(d, signalled ? r->signallers : r->candidates);
    if (lost && signalled)
        lost = nobody_alive(d, r->signallers);
    else if (lost && loss != XP_ROSTER_SIGNALLER && !(gone && (roster & XP_ROSTER_EVER)))
        lost = (gone || !awaited) && nobody_alive(d, r->candidates);
    pthread_mutex_unlock(&d->mu);
    /* A process may have joined, signalled and left in between. */
    return lost && XP_LOAD(&s->w->roster) == roster && XP_LOAD(&s->w->pending) == v->pending;
}

const uint64_t *xp_relied(const xp_roles *r)
{
    return anybody_but(r->signallers, XP_NO_MEMBER) ? r->signallers : r->candidates;
}

void xp_roster_watch(const xp_slot *s, uint64_t *mask)
{
    const uint64_t *relied = xp_relied(s->roles);
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        mask[i] |= XP_LOAD(&relied[i]);
    mask[0] |= 1; /* the exporter: without it nobody can join */
}

void xp_roster_join(xp_slot *s, bool signaller)
{
    xp_domain *d = s->d;
    xp_roles *r = s->roles;
    uint32_t me = d->member;
    xp_set(signaller ? r->signallers : r->candidates, me);
    if (!signaller && !d->owner && xp_pickles_wait(s))
        __atomic_fetch_or(xp_pickles_at(d, s->index), XP_PICKLES_OPENED, __ATOMIC_SEQ_CST); /* before the roster changes */
    uint64_t old = XP_LOAD(&s->w->roster), new = 0;
    for (int i = 0; i < XP_TRIES; i++) {
        uint64_t loss = old & XP_ROSTER_LOSS;
        uint32_t joined = joined_in(old);
        if (loss && (signaller || (loss == XP_ROSTER_CANDIDATE && !anybody_but(r->signallers, XP_NO_MEMBER)))) {
            /* The loss ends for all but this process, and for this process once another one joins. A candidate's
             * death that has lost nothing is forgotten when it turns out who signals. */
            if ((joined && joined != me + 1) ||
                (signaller && loss == XP_ROSTER_CANDIDATE && others_alive(d, r->candidates)))
                loss = joined = 0;
            else
                joined = me + 1;
        }
        new = with(old, loss, joined) | (signaller ? XP_ROSTER_EVER : 0);
        if (XP_CAS(&s->w->roster, &old, new))
            break;
    }
    xp_wake(s->w, d->bell);
}

void xp_roster_close(xp_domain *d, xp_roles *r, uint32_t m)
{
    if (xp_bit(r->signallers, m) && !anybody_but(r->signallers, m))
        XP_EACH(r->candidates, other)
            if (other != m && !xp_alive(&d->ms, other))
                xp_clear(r->candidates, other);
    xp_clear(r->signallers, m);
}

void xp_roster_lose(xp_words *w)
{
    uint64_t old = XP_LOAD(&w->roster);
    for (int i = 0; i < XP_TRIES && !XP_CAS(&w->roster, &old, with(old, XP_ROSTER_SIGNALLER, 0)); i++)
        ;
}

void xp_roster_leave(xp_domain *d, uint32_t index, uint32_t m, uint32_t cause, bool owed)
{
    xp_words *w = xp_words_at(d, index);
    xp_roles *r = xp_roles_at(d, index);
    if (cause == XP_CAUSE_EXIT && !owed)
        xp_roster_close(d, r, m);
    bool died = cause == XP_CAUSE_DEATH || cause == XP_CAUSE_ABANDONED;
    bool pickle = cause == XP_CAUSE_UNOPENED; /* of a process that is not a member: it counts as a candidate */
    uint64_t old = XP_LOAD(&w->roster);
    for (int i = 0; i < XP_TRIES; i++) {
        if (pickle && XP_LOAD(xp_pickles_at(d, index)) & XP_PICKLES_OPENED)
            break; /* since, and before `old` was read */
        uint64_t loss = old & XP_ROSTER_LOSS;
        uint32_t joined = joined_in(old);
        if (!pickle && joined == m + 1) /* another member may get its index next */
            loss = joined = 0;
        bool counts = !anybody_but(r->signallers, m) && (loss != XP_ROSTER_SIGNALLER || joined);
        if (owed || (died && xp_bit(r->signallers, m))) {
            loss = XP_ROSTER_SIGNALLER;
            joined = 0;
        } else if ((pickle || (died && xp_bit(r->candidates, m))) && counts) {
            loss = XP_ROSTER_CANDIDATE;
            joined = 0;
        } else if (joined == joined_in(old)) {
            break; /* it did not matter */
        }
        if (loss) {
            XP_STORE_RELAXED(&w->cause, cause);
            XP_STORE_RELAXED(&w->blame, pickle ? 0 : XP_RELAXED(&xp_member_at(d, m)->pid));
        }
        if (XP_CAS(&w->roster, &old, with(old, loss, joined)))
            break;
    }
    if (pickle)
        return;
    xp_clear(r->signallers, m);
    xp_clear(r->candidates, m);
}
