/* Who may still signal a point that nobody has submitted: docs/events-protocol.md, "Signallers". */
#include "events.h"

#include <stdlib.h>

static inline uint32_t joined_in(uint64_t roster) { return (uint32_t)(roster & XP_ROSTER_JOINED) >> XP_ROSTER_JOINED_BIT; }

static inline uint64_t with(uint64_t roster, uint64_t loss, uint32_t joined)
{
    roster &= ~(uint64_t)(XP_ROSTER_LOSS | XP_ROSTER_JOINED);
    return (roster | loss | (uint64_t)joined << XP_ROSTER_JOINED_BIT) + XP_ROSTER_CHANGE;
}

/* Is anybody but `m` in the mask? */
static bool anybody_but(const uint64_t *mask, uint32_t m)
{
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        if (XP_LOAD(&mask[i]) & ~(m / 64 == i ? 1ull << m % 64 : 0))
            return true;
    return false;
}

/* With d->mu. The bit again once its member is seen alive: else somebody new has the index. */
static bool others_alive(xp_domain *d, const uint64_t *mask)
{
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        XP_EACH_BIT(XP_LOAD(&mask[i]), bits) {
            uint32_t m = i * 64 + (uint32_t)__builtin_ctzll(bits);
            if (m != d->member && xp_alive(d, m) && xp_bit(mask, m))
                return true;
        }
    return false;
}

bool xp_future_lost(xp_slot *s, const xp_view *v)
{
    xp_domain *d = s->d;
    const xp_roles *r = s->roles;
    uint64_t roster = XP_LOAD(&s->w->roster), loss = roster & XP_ROSTER_LOSS;
    uint32_t joined = joined_in(roster);
    if (joined && joined != d->member + 1)
        loss = 0; /* somebody else came since */
    pthread_mutex_lock(&d->mu);
    bool signalled = anybody_but(r->signallers, XP_NO_MEMBER);
    bool gone = d->member != 0 && !xp_alive(d, 0);
    bool lost = loss || gone || xp_unreaped(d, signalled ? r->signallers : r->candidates);
    if (lost && signalled)
        lost = !others_alive(d, r->signallers);
    else if (lost && loss != XP_ROSTER_SIGNALLER && !(gone && (roster & XP_ROSTER_EVER)))
        lost = !others_alive(d, r->candidates);
    pthread_mutex_unlock(&d->mu);
    /* Somebody may have come, signalled and gone in between. */
    return lost && XP_LOAD(&s->w->roster) == roster && XP_LOAD(&s->w->pending) == v->pending;
}

void xp_roster_watch(const xp_slot *s, uint64_t *mask)
{
    const xp_roles *r = s->roles;
    const uint64_t *relied = anybody_but(r->signallers, XP_NO_MEMBER) ? r->signallers : r->candidates;
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        mask[i] |= XP_LOAD(&relied[i]);
    mask[0] |= 1; /* the exporter: without it nobody can join */
}

/* With d->mu. */
static void reap_dead(xp_domain *d, const uint64_t *mask)
{
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        XP_EACH_BIT(XP_LOAD(&mask[i]), bits)
            xp_reap(d, i * 64 + (uint32_t)__builtin_ctzll(bits), false);
}

/* This process may signal, or does. Who died before is told first, so that their loss ends now; then the bit, so that
 * this process's own death counts from here on. With d->mu. */
static void join(xp_slot *s, bool signaller)
{
    xp_domain *d = s->d;
    xp_roles *r = s->roles;
    uint32_t me = d->member;
    reap_dead(d, anybody_but(r->signallers, XP_NO_MEMBER) ? r->signallers : r->candidates);
    xp_set(signaller ? r->signallers : r->candidates, me);
    uint64_t old = XP_LOAD(&s->w->roster), new = 0;
    for (int i = 0; i < XP_TRIES; i++) {
        uint64_t loss = old & XP_ROSTER_LOSS;
        uint32_t joined = joined_in(old);
        if (loss && (signaller || (loss == XP_ROSTER_CANDIDATE && !anybody_but(r->signallers, XP_NO_MEMBER)))) {
            /* The loss ends for all but this process, and for that once another one joins. A candidate's death that has
             * lost nothing is forgotten when it turns out who signals. */
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
    xp_wake(d, s->w);
}

bool xp_roster_attach(xp_slot *s)
{
    xp_domain *d = s->d;
    if (s->role == XP_ONLY_WAITS)
        return true;
    pthread_mutex_lock(&d->mu);
    bool ok = xp_counts_reach(&d->able, s->index);
    if (ok && d->able.at[s->index]++ == 0)
        join(s, false);
    if (ok && s->role == XP_WILL_SIGNAL && !xp_bit(s->roles->signallers, d->member))
        join(s, true);
    pthread_mutex_unlock(&d->mu);
    return ok;
}

bool xp_roster_signals(xp_slot *s)
{
    xp_domain *d = s->d;
    if (XP_LIKELY(xp_bit(s->roles->signallers, d->member)))
        return false;
    pthread_mutex_lock(&d->mu);
    if (xp_usable(d) && !xp_bit(s->roles->signallers, d->member))
        join(s, true);
    return true;
}

void xp_roster_signalled(xp_slot *s) { pthread_mutex_unlock(&s->d->mu); }

/* A signaller closes the event. Were it the last one, the candidates would count from now on; those who died before did
 * not. With d->mu. */
static void close_role(xp_domain *d, xp_roles *r, uint32_t m)
{
    if (xp_bit(r->signallers, m) && !anybody_but(r->signallers, m))
        for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
            XP_EACH_BIT(XP_LOAD(&r->candidates[i]), bits) {
                uint32_t other = i * 64 + (uint32_t)__builtin_ctzll(bits);
                if (other != m && !xp_alive(d, other))
                    xp_clear(r->candidates, other);
            }
    xp_clear(r->signallers, m);
}

void xp_roster_detach(xp_slot *s)
{
    xp_domain *d = s->d;
    uint32_t me = d->member;
    pthread_mutex_lock(&d->mu);
    bool able = s->role == XP_ONLY_WAITS || --d->able.at[s->index];
    bool attached = d->attaches.at[s->index] > 1;
    if (!able || !attached)
        close_role(d, s->roles, me);
    if (!able)
        xp_clear(s->roles->candidates, me);
    if (!attached)
        xp_roster_leave(d, s->index, me, XP_CAUSE_EXIT, false);
    pthread_mutex_unlock(&d->mu);
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
        close_role(d, r, m);
    uint64_t old = XP_LOAD(&w->roster);
    for (int i = 0; i < XP_TRIES; i++) {
        uint64_t loss = old & XP_ROSTER_LOSS;
        uint32_t joined = joined_in(old);
        if (joined == m + 1) /* somebody else may have its index next */
            loss = joined = 0;
        bool counts = !anybody_but(r->signallers, m) && (loss != XP_ROSTER_SIGNALLER || joined);
        if (owed || (cause == XP_CAUSE_DEATH && xp_bit(r->signallers, m))) {
            loss = XP_ROSTER_SIGNALLER;
            joined = 0;
        } else if (cause == XP_CAUSE_DEATH && xp_bit(r->candidates, m) && counts) {
            loss = XP_ROSTER_CANDIDATE;
            joined = 0;
        } else if (joined == joined_in(old)) {
            break; /* it was of no matter */
        }
        if (loss) {
            XP_STORE_RELAXED(&w->cause, cause);
            XP_STORE_RELAXED(&w->blame, XP_RELAXED(&xp_member_at(d, m)->pid));
        }
        if (XP_CAS(&w->roster, &old, with(old, loss, joined)))
            break;
    }
    xp_clear(r->signallers, m);
    xp_clear(r->candidates, m);
}
