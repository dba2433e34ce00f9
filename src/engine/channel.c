/* The channel, step by step as docs/channels-protocol.md says. */
#include "channel.h"

#include <stdlib.h>
#include <unistd.h>

#define SPIN_NS 50000u
#define MOST_CREDIT 8
#define SETTLE_NS 200000000u /* how long to wait for the lock, which is held for microseconds: its owner may be stopped */
#define READERS_NS 100000000u /* how often a writer that needs readers looks whether they are dead */
#define DYING_RETRY XP_POLLED

static uint32_t total(const xp_geometry *g) { return g->slots + g->spare; }

#define INLINE_ENDS 128u /* of which a slot's first cache line has the holders */
#define ENDS_MOST XP_GROUP_MEMBERS

static uint64_t aligned(uint64_t nbytes) { return (nbytes + 63) / 64 * 64; }

/* Small channels have small slots. */
static uint64_t slot_nbytes(const xp_geometry *g)
{
    uint64_t more = g->ends > INLINE_ENDS ? ENDS_MOST / 8 - INLINE_ENDS / 8 : 0;
    return aligned(sizeof(xp_slot_words) + g->ends * sizeof(uint64_t) + more);
}

static uint64_t slots_at(const xp_geometry *g) { return aligned(sizeof(xp_channel_words) + g->ends * sizeof(xp_end_words)); }
static uint64_t meta_at(const xp_geometry *g) { return slots_at(g) + total(g) * slot_nbytes(g); }
static uint64_t cards_at(const xp_geometry *g)
{
    return aligned(meta_at(g) + total(g) * ((uint64_t)g->meta_nbytes + g->text_nbytes));
}

uint64_t xp_channel_nbytes(const xp_geometry *g)
{
    if (g->slots < 3 || g->slots > XP_CHANNEL_SLOTS || g->spare > XP_CHANNEL_SPARE || g->writers < 1 ||
        g->writers > g->slots - 2 || g->history > g->slots - 1 - g->writers || g->on_full > XP_RAISE ||
        g->on_no_readers > XP_RAISE_WITHOUT || g->nbytes == 0 ||
        g->nbytes >= 1ull << 48 || g->meta_nbytes > 1u << 20 || g->text_nbytes > 1u << 20 || g->ends < 1 || g->ends > ENDS_MOST)
        return 0;
    return xp_group_nbytes(g->ends, 1, cards_at(g) + g->ends * sizeof(xp_end_card));
}

static xp_channel_words *words(const xp_group *c) { return (xp_channel_words *)c->words; }

static void use_bells(xp_group *c)
{
    c->bells[0] = &words(c)->lock.bell;
    c->bells[1] = &words(c)->bell;
    c->listeners = &words(c)->listeners;
}

void xp_channel_begin(xp_group *c, const xp_geometry *g, const char *text, uint32_t n)
{
    xp_channel_words *w = words(c);
    w->geometry = *g;
    w->next_seq = 1;
    memcpy(w->text, text, n < XP_CHANNEL_TEXT ? n : XP_CHANNEL_TEXT);
    use_bells(c);
}

bool xp_channel_geometry(const xp_group *c, xp_geometry *g)
{
    if (c->nbytes < (uint64_t)(c->words - c->base) + sizeof(xp_channel_words))
        return false;
    memcpy(g, &words(c)->geometry, sizeof *g);
    __asm__ __volatile__("" ::: "memory"); /* copied first, so that the checked values are the used ones */
    uint64_t nbytes = xp_channel_nbytes(g);
    use_bells((xp_group *)c);
    return nbytes && nbytes <= c->nbytes && g->ends == c->count && c->places == 1;
}

/* A single store, by the first member that finds the slots gone. If that member dies before it rings, the next one
 * stores again. */
void xp_channel_move(xp_group *c)
{
    XP_STORE(&words(c)->moved, 1);
    __atomic_fetch_add(&words(c)->changes, 1, __ATOMIC_SEQ_CST);
    xp_ring_all(c);
}

/* --- slots -------------------------------------------------------------------------------------------------------- */

static inline xp_slot_words *slot_at(const xp_end *e, uint32_t i) { return xp_slot_words_at(e, i); }
/* No end at or above this index was ever used. */
static inline uint32_t top(const xp_end *e)
{
    uint32_t found = XP_LOAD(&e->w->top);
    return found < e->g.ends ? found : e->g.ends;
}
static inline int state_of(uint64_t word) { return (int)(word & 7); }
static inline uint64_t seq_of(uint64_t word) { return word >> 3; }
static inline uint64_t *holders_of(const xp_end *e, xp_slot_words *s, uint32_t end)
{
    return end < INLINE_ENDS ? &s->holders[end / 64] : &s->reads[e->g.ends + (end - INLINE_ENDS) / 64];
}
static inline bool held(const xp_end *e, const xp_slot_words *s)
{
    if (s->holders[0] | s->holders[1])
        return true;
    for (uint32_t i = INLINE_ENDS; i < e->g.ends; i += 64)
        if (*holders_of(e, (xp_slot_words *)s, i))
            return true;
    return false;
}
static inline bool holds(const xp_end *e, xp_slot_words *s, uint32_t end) { return *holders_of(e, s, end) >> end % 64 & 1; }
static inline void hold(const xp_end *e, xp_slot_words *s, uint32_t end) { *holders_of(e, s, end) |= 1ull << end % 64; }
static inline void unhold(const xp_end *e, xp_slot_words *s, uint32_t end) { *holders_of(e, s, end) &= ~(1ull << end % 64); }
static inline int job_of(const xp_slot_words *s) { return (int)(s->job & 0xff); }
/* If nobody holds the frame of a taken job, the reader died in between, and its reaper will queue the job again. */
static inline bool unfinished(const xp_slot_words *s) { return job_of(s) == XP_QUEUED || job_of(s) == XP_TAKEN; }
static inline void commit(xp_slot_words *s, uint64_t seq, int state)
{
    XP_STORE(&s->word, seq << 3 | (uint64_t)state);
}

const char *xp_end_meta(const xp_end *e, uint32_t slot)
{
    return (const char *)e->w + meta_at(&e->g) + (size_t)slot * (e->g.meta_nbytes + e->g.text_nbytes);
}

xp_end_card *xp_end_card_of(const xp_end *e, uint32_t end) { return (xp_end_card *)((char *)e->w + cards_at(&e->g)) + end; }

uint32_t xp_end_of_member(const xp_end *e, uint32_t end)
{
    uint32_t member = XP_RELAXED(&e->ends[end].member);
    return member && member <= e->c->count ? member - 1 : XP_GROUP_NOBODY;
}

uint64_t xp_end_read_point(const xp_end *e, uint32_t slot, uint32_t end)
{
    const xp_slot_words *s = slot_at(e, slot);
    uint64_t point = XP_LOAD(&s->reads[end]);
    /* The earlier writer, if it lives: perhaps nobody has read its frame. */
    return s->point_by == end && s->since == e->ends[end].began && s->point > point ? s->point : point;
}

bool xp_end_holds(const xp_end *e, uint32_t slot, uint32_t end) { return holds(e, slot_at(e, slot), end); }

void xp_end_look(xp_end *e, xp_group *c, const xp_geometry *g)
{
    *e = (xp_end){.c = c, .w = words(c), .g = *g, .m = XP_GROUP_NOBODY, .closed = 1, .slot_nbytes = slot_nbytes(g)};
    e->ends = (xp_end_words *)(e->w + 1);
    e->slots = (char *)e->w + slots_at(g);
}

/* --- the lock ----------------------------------------------------------------------------------------------------- */

/* Finish what the last owner may have left half done. The owner itself is reaped like any other dead member. */
static void repair(xp_end *e)
{
    for (uint32_t i = 0; i < total(&e->g); i++) {
        xp_slot_words *s = slot_at(e, i);
        if (state_of(s->word) == XP_FULL && seq_of(s->word) >= e->w->next_seq)
            e->w->next_seq = seq_of(s->word) + 1;
        if (e->w->group == 0)
            s->job = XP_NO_JOB;
    }
}

_Thread_local bool xp_end_hurry;

/* Return false if the caller has to check the group and pending signals, and then try again. */
static bool lock(xp_end *e)
{
    int got = xp_lock_try(&e->w->lock, e->c->member, 0);
    if (XP_UNLIKELY(got == XP_LOCK_BUSY && !xp_end_hurry))
        got = xp_lock_take(e->c, &e->w->lock, e->c->member, xp_now() + SETTLE_NS);
    if (got == XP_LOCK_DIED)
        repair(e);
    return got != XP_LOCK_BUSY;
}

static void unlock(xp_end *e, bool changed)
{
    xp_lock_release(&e->w->lock, e->c->member);
    if (changed) { /* a member that dies before it reports this rings the bell by its death */
        xp_end_stir(e);
        xp_group_tell(e->c);
    }
}

void xp_end_stir(xp_end *e)
{
    __atomic_fetch_add(&e->w->changes, 1, __ATOMIC_SEQ_CST);
    xp_ring(&e->w->bell);
}

/* --- members ------------------------------------------------------------------------------------------------------ */

/* A frame that no reader finished is delivered once more, or goes to the dead letters. */
static void hand_again(xp_end *e, xp_slot_words *s)
{
    xp_channel_words *w = e->w;
    if (e->g.redeliver == 0 || s->deliveries < e->g.redeliver) {
        XP_STORE(&s->job, XP_QUEUED);
        return;
    }
    xp_slot_words *oldest = NULL;
    uint32_t failed = 0;
    for (uint32_t i = 0; i < total(&e->g); i++) {
        xp_slot_words *o = slot_at(e, i);
        if (state_of(o->word) != XP_FAILED)
            continue;
        failed++;
        if (!held(e, o) && (oldest == NULL || o->word < oldest->word))
            oldest = o;
    }
    w->failed++;
    if (failed >= e->g.spare && oldest)
        commit(oldest, seq_of(oldest->word), XP_FREE);
    if (failed < e->g.spare || oldest) /* all of them are being read, so this one is dropped */
        commit(s, seq_of(s->word), XP_FAILED);
    s->job = XP_FINISHED_JOB;
}

static bool is_writer(const xp_end_words *end) { return end->role & XP_END_WRITER; }

static void writer_goes(xp_end *e, uint32_t m)
{
    xp_channel_words *w = e->w;
    if (!is_writer(&e->ends[m]))
        return;
    for (uint32_t i = 0, n = top(e); i < n; i++)
        if (i != m && is_writer(&e->ends[i]))
            return;
    uint32_t member = xp_end_of_member(e, m);
    w->lost_pid = member == XP_GROUP_NOBODY ? 0 : xp_group_member_at(e->c, member)->who.pid;
    XP_STORE(&w->last_gone, e->ends[m].role & XP_END_FINISHED ? XP_GONE_FINISHED : XP_GONE_LOST);
}

static bool is_reader(const xp_end_words *end) { return end->role & XP_END_MODE; }

static void reader_goes(xp_end *e, uint32_t m, bool died)
{
    xp_channel_words *w = e->w;
    if (!is_reader(&e->ends[m]))
        return;
    for (uint32_t i = 0, n = top(e); i < n; i++)
        if (i != m && is_reader(&e->ends[i]))
            return;
    uint32_t member = xp_end_of_member(e, m);
    w->dead_reader = !died || member == XP_GROUP_NOBODY ? 0 : xp_group_member_at(e->c, member)->who.pid;
    XP_STORE(&w->last_reader, died ? XP_READER_DIED : XP_READER_CLOSED);
}

/* Remove an end that leaves, or whose process is dead. Called with the lock. Repeating it is harmless. */
static void reap(xp_end *e, uint32_t m, bool died)
{
    for (uint32_t i = 0; i < total(&e->g); i++) {
        xp_slot_words *s = slot_at(e, i);
        if (state_of(s->word) == XP_LOANED && s->owner == m + 1)
            commit(s, 0, XP_FREE);
        if (s->job == ((uint64_t)(m + 1) << 8 | XP_TAKEN) && state_of(s->word) == XP_FULL)
            hand_again(e, s);
        unhold(e, s, m);
        s->reads[m] = 0; /* its process has ended, and with it the process's device work */
    }
    writer_goes(e, m);
    reader_goes(e, m, died);
    XP_STORE(&e->ends[m].role, 0);
    XP_STORE(&e->ends[m].member, 0);
}

/* Whether the process of an end has released its memory or, if devices may work for it, has ended. */
static bool is_over(xp_end *e, uint32_t end)
{
    uint32_t m = xp_end_of_member(e, end);
    if (m == XP_GROUP_NOBODY || XP_RELAXED(&xp_group_member_at(e->c, m)->who.since_ns) != XP_RELAXED(&e->ends[end].since))
        return true; /* another process has that number, which it got once the first had ended */
    return e->g.device ? xp_group_is_dead(e->c, m) : xp_group_is_gone(e->c, m);
}

/* Return how many writers live. Dead ones are reaped. */
static uint32_t writers(xp_end *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0, most = top(e); i < most; i++) {
        if (!is_writer(&e->ends[i]))
            continue;
        if (i != e->m && is_over(e, i))
            reap(e, i, true);
        else
            n++;
    }
    return n;
}

void xp_end_count(xp_end *e, uint32_t *readers, uint32_t *writers)
{
    *readers = *writers = 0;
    for (uint32_t i = 0, most = top(e); i < most; i++) {
        uint32_t role = XP_LOAD(&e->ends[i].role);
        if (role == 0 || (i != e->m && is_over(e, i)))
            continue;
        *readers += (role & XP_END_MODE) != 0;
        *writers += (role & XP_END_WRITER) != 0;
    }
}

static int add_writer(xp_end *e)
{
    xp_end_words *mine = &e->ends[e->m];
    if (is_writer(mine) && !(mine->role & XP_END_FINISHED))
        return XP_GOT;
    if (!is_writer(mine) && writers(e) >= e->g.writers)
        return XP_NO_WRITER;
    XP_STORE(&mine->role, (mine->role & XP_END_MODE) | XP_END_WRITER);
    XP_STORE(&e->w->last_gone, XP_GONE_NONE);
    return XP_GOT;
}

static void add_reader(xp_end *e, int mode, bool oldest)
{
    xp_channel_words *w = e->w;
    xp_end_words *mine = &e->ends[e->m];
    uint64_t first = w->next_seq, newest = 0, there = 0;
    for (uint32_t i = 0; i < total(&e->g) && oldest; i++) {
        uint64_t word = slot_at(e, i)->word;
        if (state_of(word) != XP_FULL)
            continue;
        there++;
        if (seq_of(word) < first)
            first = seq_of(word);
        if (seq_of(word) > newest)
            newest = seq_of(word);
    }
    if (mode == XP_MODE_NEWEST && newest)
        mine->cursor = newest;
    else { /* an old frame that somebody holds may lie far before the others: the frames between are not lost to this reader */
        mine->cursor = first;
        mine->missed = -(int64_t)(w->next_seq - first - there);
    }
    if (mode == XP_MODE_ONE && w->group == 0) {
        for (uint32_t i = 0; i < total(&e->g); i++) {
            xp_slot_words *s = slot_at(e, i);
            if (state_of(s->word) == XP_FULL && seq_of(s->word) >= first) {
                s->deliveries = 0;
                s->job = XP_QUEUED;
            }
        }
        XP_STORE(&w->group, first + 1);
    }
    XP_STORE(&mine->role, (uint32_t)mode);
}

/* Return the first index that no living process has, or `ends`. Called with the lock. */
static uint32_t free_end(xp_end *e)
{
    for (uint32_t i = 0; i < e->g.ends; i++)
        if (!XP_RELAXED(&e->ends[i].member))
            return i;
    for (uint32_t i = 0; i < e->g.ends; i++)
        if (is_over(e, i))
            return i;
    return e->g.ends;
}

int xp_end_join(xp_end *e, xp_group *c, const xp_geometry *g, const char *label, int mode, bool oldest, bool writer)
{
    xp_end_look(e, c, g);
    e->closed = 0;
    e->mode = mode;
    e->credit = MOST_CREDIT;
    e->pid = (uint32_t)getpid();
    if (!lock(e))
        return EAGAIN;
    int rc = (e->m = free_end(e)) < g->ends ? 0 : ENOSPC;
    if (rc == 0) {
        reap(e, e->m, true); /* remove what the last end with this index left */
        xp_end_words *mine = &e->ends[e->m];
        *mine = (xp_end_words){.since = xp_group_member_at(c, c->member)->who.since_ns, .began = ++e->w->begun};
        xp_end_card *card = xp_end_card_of(e, e->m);
        memset(card, 0, sizeof *card);
        memcpy(card->label, label, strnlen(label, sizeof card->label));
        XP_STORE(&mine->member, c->member + 1);
        if (top(e) <= e->m)
            XP_STORE(&e->w->top, e->m + 1);
        if (mode)
            add_reader(e, mode, oldest);
        if (mode == XP_MODE_ONE)
            e->seen = e->w->group_missed;
        rc = writer && add_writer(e) != XP_GOT ? EBUSY : 0;
        if (rc)
            reap(e, e->m, false);
    }
    unlock(e, true);
    if (rc == 0) {
        xp_place_count(c, 0, 1);
        xp_group_ref(c);
    }
    return rc;
}

void xp_end_leave(xp_end *e)
{
    if (XP_EXCHANGE(&e->closed, 1) || xp_group_wrong(e->c))
        return;
    if (lock(e)) {
        reap(e, e->m, false);
        unlock(e, true);
    } else { /* others remove the rest */
        XP_STORE(&e->ends[e->m].member, 0);
    }
    xp_place_count(e->c, 0, -1);
    xp_ring_all(e->c);
}

int xp_end_become_writer(xp_end *e)
{
    if (!lock(e))
        return XP_UNUSABLE;
    int got = add_writer(e);
    unlock(e, got == XP_GOT);
    return got;
}

int xp_end_finish(xp_end *e)
{
    if (!lock(e))
        return XP_UNUSABLE;
    int got = is_writer(&e->ends[e->m]) ? XP_GOT : add_writer(e);
    if (got == XP_GOT) {
        XP_STORE(&e->ends[e->m].role, e->ends[e->m].role | XP_END_FINISHED);
        e->finished = true;
    }
    unlock(e, got == XP_GOT);
    return got;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Return the lowest seq that a living reader in mode "all" still needs, whether one in mode "newest" needs the last,
 * and whether there is a reader. */
static uint64_t wanted_from(const xp_end *e, bool *newest, bool *readers)
{
    uint64_t lowest = UINT64_MAX;
    *newest = *readers = false;
    for (uint32_t i = 0, n = top(e); i < n; i++) {
        const xp_end_words *end = &e->ends[i];
        int mode = (int)(end->role & XP_END_MODE);
        if (mode == XP_MODE_ALL && end->cursor < lowest)
            lowest = end->cursor;
        *readers = *readers || mode;
        *newest = *newest || (mode == XP_MODE_NEWEST && end->cursor < e->w->next_seq);
    }
    return lowest;
}

/* The result for a writer without readers. */
static int without_readers(const xp_end *e)
{
    uint32_t last = e->g.on_no_readers == XP_RAISE_WITHOUT ? e->w->last_reader : XP_NO_READER_YET;
    return last == XP_NO_READER_YET ? XP_WAIT : last == XP_READER_CLOSED ? XP_READERS_LEFT : XP_READERS_LOST;
}

int xp_end_loan(xp_end *e, uint32_t *slot)
{
    if (XP_UNLIKELY(XP_LOAD(&e->w->moved)))
        return XP_MOVED;
    if (XP_UNLIKELY(e->g.on_no_readers) && XP_RELAXED(&e->looked) + READERS_NS < xp_now()) {
        XP_STORE_RELAXED(&e->looked, xp_now());
        xp_end_watch(e);
    }
    if (!lock(e))
        return XP_UNUSABLE;
    xp_channel_words *w = e->w;
    int got = e->finished ? XP_SAID_END : add_writer(e);
    uint64_t self = (uint64_t)pthread_self();
    if (got != XP_GOT || e->loaned_by) {
        unlock(e, false);
        return got != XP_GOT ? got : e->loaned_by == self ? XP_TWICE : XP_WAIT;
    }
    if (!e->reads && e->ends[e->m].role & XP_END_MODE) /* it was opened to write, so nobody waits for it to read */
        XP_STORE(&e->ends[e->m].role, e->ends[e->m].role & ~XP_END_MODE);
    bool newest, readers;
    uint64_t from = wanted_from(e, &newest, &readers), last = w->next_seq - 1;
    if (XP_UNLIKELY(!readers && e->g.on_no_readers)) {
        got = without_readers(e);
        unlock(e, false);
        return got;
    }
    uint64_t kept = e->g.history ? w->next_seq - (e->g.history < w->next_seq ? e->g.history : w->next_seq) : UINT64_MAX;
    uint32_t full = 0, loans = 0, n = total(&e->g), chosen = n, over = n, unused = n;
    uint64_t chosen_word = UINT64_MAX, over_word = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        const xp_slot_words *s = slot_at(e, i);
        uint64_t word = s->word, seq = seq_of(word);
        if (state_of(word) != XP_FULL) {
            loans += state_of(word) == XP_LOANED;
            if (state_of(word) == XP_FREE && unused == n)
                unused = i;
            continue;
        }
        full++;
        if (word >= chosen_word || held(e, s))
            continue;
        if (word < over_word) {
            over = i;
            over_word = word;
        }
        if (seq < from && !unfinished(s) && seq < kept && !(newest && seq == last)) {
            chosen = i;
            chosen_word = word;
        }
    }
    got = XP_GOT;
    if (full + loans < e->g.slots) {
        chosen = unused;
    } else if (chosen == n && e->g.on_full == XP_OVERWRITE) {
        chosen = over;
        if (chosen < n && unfinished(slot_at(e, chosen)))
            w->group_missed++;
    }
    if (loans >= e->g.writers || chosen >= n)
        got = e->g.on_full == XP_RAISE && loans < e->g.writers ? XP_NO_ROOM : XP_WAIT;
    if (got == XP_GOT) {
        xp_slot_words *s = slot_at(e, chosen);
        s->owner = e->m + 1;
        commit(s, 0, XP_LOANED);
        s->job = XP_NO_JOB;
        e->loaned_by = self;
        *slot = chosen;
    }
    unlock(e, false);
    return got;
}

static bool has_loan(const xp_end *e, uint32_t slot)
{
    return slot < total(&e->g) && state_of(slot_at(e, slot)->word) == XP_LOANED && slot_at(e, slot)->owner == e->m + 1;
}

void xp_end_fill(xp_end *e, uint32_t slot, const char *meta, uint32_t meta_nbytes, const char *text, uint32_t text_nbytes)
{
    if (!has_loan(e, slot) || meta_nbytes > e->g.meta_nbytes || text_nbytes > e->g.text_nbytes)
        return;
    xp_slot_words *s = slot_at(e, slot);
    char *at = (char *)xp_end_meta(e, slot);
    memcpy(at, meta, meta_nbytes);
    memcpy(at + e->g.meta_nbytes, text, text_nbytes);
    s->meta_nbytes = meta_nbytes;
    s->text_nbytes = text_nbytes;
}

int xp_end_send(xp_end *e, uint32_t slot, uint64_t nbytes, uint64_t point, uint64_t *seq)
{
    if (!lock(e))
        return XP_UNUSABLE;
    e->loaned_by = 0;
    if (!has_loan(e, slot)) {
        unlock(e, false);
        return XP_UNUSABLE;
    }
    xp_channel_words *w = e->w;
    xp_slot_words *s = slot_at(e, slot);
    s->nbytes = nbytes;
    s->writer_pid = e->pid;
    s->time_ns = xp_now(); /* with the lock, so that it grows with the seq */
    if (e->g.device) {
        s->point = point;
        s->point_by = e->m;
        s->since = e->ends[e->m].began;
        memset(s->reads, 0, e->g.ends * sizeof *s->reads);
    }
    if (s->deliveries)
        s->deliveries = 0;
    s->job = w->group ? XP_QUEUED : XP_NO_JOB;
    *seq = w->next_seq;
    commit(s, *seq, XP_FULL); /* the frame is sent */
    w->next_seq = *seq + 1;
    unlock(e, true);
    return XP_GOT;
}

int xp_end_drop(xp_end *e, uint32_t slot)
{
    if (!lock(e))
        return XP_UNUSABLE;
    e->loaned_by = 0;
    if (has_loan(e, slot))
        commit(slot_at(e, slot), 0, XP_FREE);
    unlock(e, true);
    return XP_GOT;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Return the state that a reader without a frame waits for. */
static int without_frame(xp_end *e, bool jobs)
{
    bool any = false, open = false;
    for (uint32_t i = 0, n = top(e); i < n; i++) {
        const xp_end_words *end = &e->ends[i];
        any = any || is_writer(end);
        open = open || (is_writer(end) && !(end->role & XP_END_FINISHED));
    }
    if (open || (jobs && e->mode == XP_MODE_ONE))
        return XP_WAIT;
    if (any)
        return XP_OVER;
    uint32_t gone = e->w->last_gone;
    return gone == XP_GONE_FINISHED ? XP_OVER : gone == XP_GONE_LOST && !e->reconnect ? XP_LOST_END : XP_WAIT;
}

static uint64_t missed_by(const xp_end_words *end) { return end->missed > 0 ? (uint64_t)end->missed : 0; }

static void describe(const xp_end *e, uint32_t slot, uint64_t missed, xp_frame *frame)
{
    const xp_slot_words *s = slot_at(e, slot);
    *frame = (xp_frame){.slot = slot, .deliveries = s->deliveries, .seq = seq_of(s->word), .missed = missed,
                        .nbytes = s->nbytes, .time_ns = s->time_ns, .writer_pid = s->writer_pid, .point = s->point, .since = s->since, .point_by = s->point_by,
                        .meta_nbytes = s->meta_nbytes, .text_nbytes = s->text_nbytes};
    if (frame->nbytes > e->g.nbytes)
        frame->nbytes = e->g.nbytes;
    if (frame->meta_nbytes > e->g.meta_nbytes)
        frame->meta_nbytes = e->g.meta_nbytes;
    if (frame->text_nbytes > e->g.text_nbytes)
        frame->text_nbytes = e->g.text_nbytes;
}

uint64_t xp_end_unread(const xp_end *e)
{
    const xp_end_words *mine = &e->ends[e->m];
    if (e->mode != XP_MODE_ONE)
        return missed_by(mine) + (e->w->next_seq - mine->cursor);
    uint64_t found = e->w->group_missed;
    for (uint32_t i = 0; i < total(&e->g); i++)
        found += state_of(slot_at(e, i)->word) == XP_FULL && job_of(slot_at(e, i)) == XP_QUEUED;
    return found;
}

int xp_end_receive(xp_end *e, xp_frame *frame, bool take)
{
    if (XP_UNLIKELY(XP_LOAD(&e->w->moved))) /* the slots have ended, and with them the frames in them */
        return e->reconnect ? XP_MOVED : XP_LOST_END;
    if (!lock(e))
        return XP_UNUSABLE;
    xp_channel_words *w = e->w;
    xp_end_words *mine = &e->ends[e->m];
    if (take && !e->reads) {
        e->reads = true;
        XP_STORE(&mine->role, (mine->role & ~XP_END_MODE) | (uint32_t)e->mode);
    }
    uint32_t n = total(&e->g), chosen = n, in_use = 0;
    uint64_t chosen_word = 0;
    bool jobs = false;
    for (uint32_t i = 0; i < n; i++) {
        const xp_slot_words *s = slot_at(e, i);
        if (state_of(s->word) != XP_FULL)
            continue;
        in_use += held(e, s);
        jobs = jobs || unfinished(s);
        bool fits = e->mode == XP_MODE_ONE ? job_of(s) == XP_QUEUED : seq_of(s->word) >= mine->cursor;
        if (!fits)
            continue;
        if (chosen == n || (e->mode == XP_MODE_NEWEST ? s->word > chosen_word : s->word < chosen_word)) {
            chosen = i;
            chosen_word = s->word;
        }
    }
    int got = XP_GOT;
    if (chosen == n)
        got = without_frame(e, jobs);
    else if (!held(e, slot_at(e, chosen)) && in_use >= e->g.slots - 1 - e->g.writers)
        got = XP_WAIT; /* the readers hold as many frames as they may */
    if (got == XP_GOT && take) {
        xp_slot_words *s = slot_at(e, chosen);
        uint64_t seq = seq_of(s->word);
        if (e->mode == XP_MODE_ONE) {
            XP_STORE(&s->job, (uint64_t)(e->m + 1) << 8 | XP_TAKEN);
            s->deliveries++;
        } else {
            mine->missed += (int64_t)(seq - mine->cursor);
        }
        hold(e, s, e->m);
        mine->cursor = seq + 1;
        mine->got++;
        uint64_t missed = (e->mode == XP_MODE_ONE ? w->group_missed : missed_by(mine)) + e->lost;
        describe(e, chosen, missed, frame);
        frame->gap = missed > e->seen ? missed - e->seen : 0;
        e->seen = missed;
    }
    unlock(e, false);
    return got;
}

int xp_end_release(xp_end *e, uint32_t slot, bool done, uint64_t point)
{
    if (slot >= total(&e->g) || !lock(e))
        return XP_UNUSABLE;
    xp_slot_words *s = slot_at(e, slot);
    bool mine = holds(e, s, e->m);
    if (mine) {
        if (point)
            s->reads[e->m] = point;
        if (s->job == ((uint64_t)(e->m + 1) << 8 | XP_TAKEN)) {
            if (state_of(s->word) == XP_FAILED) /* a dead letter that has been read */
                s->job = done ? XP_FINISHED_JOB : XP_QUEUED;
            else if (done)
                XP_STORE(&s->job, XP_FINISHED_JOB);
            else
                hand_again(e, s);
        }
        unhold(e, s, e->m);
        if (state_of(s->word) == XP_FAILED && done && !held(e, s))
            commit(s, 0, XP_FREE);
    }
    unlock(e, mine);
    return XP_GOT;
}

int xp_end_failed(xp_end *e, xp_frame *frame)
{
    xp_end_watch(e); /* a reader that has died may have had the last delivery */
    if (!lock(e))
        return XP_UNUSABLE;
    uint32_t n = total(&e->g), chosen = n;
    for (uint32_t i = 0; i < n; i++) {
        const xp_slot_words *s = slot_at(e, i);
        if (state_of(s->word) == XP_FAILED && !held(e, s) && (chosen == n || s->word < slot_at(e, chosen)->word))
            chosen = i;
    }
    if (chosen < n) {
        hold(e, slot_at(e, chosen), e->m);
        slot_at(e, chosen)->job = (uint64_t)(e->m + 1) << 8 | XP_TAKEN;
        describe(e, chosen, e->w->group_missed + e->lost, frame);
    }
    unlock(e, false);
    return chosen < n ? XP_GOT : XP_OVER;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

int xp_end_watch(xp_end *e)
{
    int worst = XP_WATCHED;
    bool reaped = false;
    uint64_t watched[XP_GROUP_MASK] = {0}; /* members: a process has many ends */
    for (uint32_t i = 0, n = top(e); i < n; i++) {
        if (i == e->m || XP_LOAD(&e->ends[i].role) == 0)
            continue;
        uint32_t m = xp_end_of_member(e, i);
        bool same = m != XP_GROUP_NOBODY && XP_RELAXED(&xp_group_member_at(e->c, m)->who.since_ns) == XP_RELAXED(&e->ends[i].since);
        if (same && (m == e->c->member || watched[m / 64] >> m % 64 & 1))
            continue;
        int how = same ? xp_group_watch(e->c, m) : XP_GONE;
        if (how == XP_POLLED)
            worst = how;
        if (how != XP_GONE) {
            watched[m / 64] |= 1ull << m % 64;
            continue;
        }
        if (!is_over(e, i)) { /* its device may work yet */
            worst = DYING_RETRY;
            continue;
        }
        if (!lock(e))
            return worst;
        /* Another end may have this index by now. */
        if (XP_LOAD(&e->ends[i].role) && is_over(e, i)) {
            reap(e, i, true);
            reaped = true;
        }
        unlock(e, true);
    }
    return reaped ? XP_GONE : worst;
}

static bool spin(xp_end *e, uint32_t changes, uint64_t end)
{
    if (!xp_may_spin() || e->credit <= 0) {
        if (e->credit <= 0 && e->credit-- <= -16)
            e->credit = 1; /* try whether spinning pays again */
        return false;
    }
    uint64_t until = xp_now() + SPIN_NS;
    do
        for (int i = 0; i < 32; i++) {
            if (XP_ACQUIRE(&e->w->changes) != changes) {
                e->credit = MOST_CREDIT;
                return true;
            }
            xp_pause();
        }
    while (xp_now() < until && until < end);
    e->credit--;
    return false;
}

int xp_end_sleep(xp_end *e, uint32_t changes, uint64_t end)
{
    if (spin(e, changes, end))
        return 0;
    uint32_t seq = XP_LOAD(&e->w->bell.seq);
    XP_STORE(&e->w->bell.sleepers, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    int watch = xp_end_watch(e);
    if (watch == XP_GONE || XP_LOAD(&e->w->changes) != changes || XP_LOAD(&e->closed))
        return 0;
    return xp_bell_sleep(e->c, &e->w->bell, seq, end, watch);
}

void xp_end_listen(xp_end *e)
{
    XP_STORE(&e->w->listeners, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
