/* Held work: docs/events-protocol.md, "Queues that hold". Also what a queue loses. */
#include "held.h"

#include <stdlib.h>
#include <unistd.h>

/* --- records ------------------------------------------------------------------------------------------------------ */

static int record_state(const xp_record *r)
{
    return XP_LOAD(&r->s->gone) || !xp_usable(r->s->d) ? XP_DONE : xp_state_here(r->s, r->point);
}

/* The point is lost, but its store is still to come. The store would release devices before other queues have lost
 * what they must. */
static bool store_to_come(const xp_record *r, int state)
{
    return state == XP_LOST && r->completion == NULL && XP_LOAD(&r->s->w->value) < r->point;
}

static void drop_first_record(xp_queue *q)
{
    xp_record *r = xp_record_at(q, 0);
    xp_completion_unref(r->completion);
    xp_slot_unref(r->s);
    q->first_record = (q->first_record + 1) % q->room;
    q->record_count--;
}

bool xp_make_room(xp_queue *q)
{
    while (q->record_count) {
        int state = record_state(xp_record_at(q, 0));
        if (state == XP_PENDING || store_to_come(xp_record_at(q, 0), state))
            break;
        drop_first_record(q);
    }
    if (q->record_count < q->room)
        return true;
    uint32_t room = q->room ? 2 * q->room : 8;
    xp_record *grown = malloc(room * sizeof *grown);
    if (grown == NULL)
        return false;
    for (uint32_t i = 0; i < q->record_count; i++)
        grown[i] = *xp_record_at(q, i);
    free(q->records);
    q->records = grown;
    q->room = room;
    q->first_record = 0;
    return true;
}

void xp_add_record(xp_queue *q, xp_slot *s, uint64_t point, uint64_t at, xp_completion *c)
{
    if (c)
        c->refs++; /* nobody else has it yet */
    xp_slot_ref(s);
    *xp_record_at(q, q->record_count++) = (xp_record){s, point, at, c};
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static void operation_set(xp_operation *op, int kind, xp_slot *s, uint64_t address, uint64_t point, uint32_t count)
{
    *op = (xp_operation){.kind = kind, .s = s, .address = address, .point = point, .count = count};
    if (s)
        xp_slot_ref(s);
}

xp_operation *xp_operation_new(int kind, xp_slot *s, uint64_t address, uint64_t point, uint32_t count)
{
    xp_operation *op = malloc(sizeof *op + count * sizeof *op->calls);
    if (op)
        operation_set(op, kind, s, address, point, count);
    return op;
}

bool xp_have_spares(xp_queue *q)
{
    for (int i = 0; i < 2; i++)
        if (q->spare[i] == NULL && (q->spare[i] = malloc(sizeof **q->spare)) == NULL)
            return false;
    return true;
}

xp_operation *xp_take_spare(xp_queue *q, int i, int kind, xp_slot *s, uint64_t address, uint64_t point)
{
    xp_operation *op = q->spare[i];
    q->spare[i] = NULL;
    operation_set(op, kind, s, address, point, 0);
    return op;
}

static void operation_free(xp_operation *op)
{
    if (op && op->s)
        xp_slot_unref(op->s);
    free(op);
}

void xp_append(xp_queue *q, xp_operation *op)
{
    op->at = ++q->at;
    *q->last = op;
    q->last = &op->next;
    q->held++;
}

uint64_t xp_next_at(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    uint64_t at = ++q->at;
    pthread_mutex_unlock(&q->mu);
    return at;
}

/* With q->mu. */
static void tell_drained(xp_queue *q)
{
    if (q->held)
        return;
    __atomic_fetch_add(&q->drained, 1, __ATOMIC_SEQ_CST);
    xp_futex_wake(&q->drained, INT32_MAX);
}

/* Called with q->order. Remove the first held operation, which was carried out. */
static void pop(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    xp_operation *op = q->first;
    q->first = op->next;
    if (q->first == NULL)
        q->last = &q->first;
    q->held--;
    tell_drained(q);
    pthread_mutex_unlock(&q->mu);
    operation_free(op);
}

/* --- losing ------------------------------------------------------------------------------------------------------- */

/* A wait at that place is lost. Called with q->mu. */
static void spoil(xp_queue *q, uint64_t at, uint32_t cause, uint64_t pid)
{
    if (q->adopted || at <= q->told || at <= q->lost_at)
        return;
    q->lost_at = at;
    q->lost = cause;
    q->lost_pid = pid;
}

void xp_spoil_by(xp_queue *q, xp_slot *s, uint64_t at)
{
    uint32_t cause = XP_RELAXED(&s->w->cause);
    q->losses++;
    spoil(q, at, cause ? cause : XP_CAUSE_DEATH, XP_RELAXED(&s->w->blame));
}

/* Lose the held signals. A signal that cannot be lost now, because an earlier point of its event is outstanding, is
 * lost when its turn comes. Called with q->mu. */
static void lose_held(xp_queue *q, uint32_t cause, uint64_t pid)
{
    for (xp_operation *op = q->first; op; op = op->next) {
        if (op->kind != XP_HELD_SIGNAL || op->handed || op->lost)
            continue;
        op->lost = cause;
        op->pid = pid;
        if (xp_usable(op->s->d))
            xp_lose(op->s->w, op->s->d->bell, cause, pid, op->point);
    }
}

static int lose_behind(xp_queue *q, uint64_t at, uint32_t cause, uint64_t pid, bool first)
{
    bool to_come = false, put_off = false;
    pthread_mutex_lock(&q->mu);
    for (uint32_t i = 0; i < q->record_count; i++) {
        xp_record *r = xp_record_at(q, i);
        if (r->at < at)
            continue;
        int state = record_state(r);
        if (state != XP_PENDING) {
            to_come = to_come || store_to_come(r, state);
        } else if (r->completion) {
            r->completion->pid = pid;
            XP_STORE(&r->completion->lost, cause);
        } else if (xp_lose_late(r->s, r->point, cause, pid)) {
            xp_mend(r->s, q);
            to_come = to_come || store_to_come(r, XP_LOST);
        } else { /* a device's store comes after no other queue's point */
            put_off = true;
        }
    }
    lose_held(q, cause, pid); /* held signals come after every wait that the device has */
    q->losses += first;
    spoil(q, at, cause, pid);
    pthread_mutex_unlock(&q->mu);
    return put_off ? XP_PUT_OFF : to_come ? XP_STORES_TO_COME : XP_ALL_LOST;
}

/* --- what a device may do ----------------------------------------------------------------------------------------- */

/* The device compares only the lower halves, and must not take an earlier value for a later one. So the upper halves
 * stay equal from now on, even if a store comes late. The value must also stay in the point's half until the device
 * checks it: what is left of that half is at least 2^31 signals. */
static bool told_by_half(xp_slot *s, const xp_view *v, uint64_t point)
{
    uint64_t upper = point >> 32;
    return (uint32_t)point < 1u << 31 && XP_LOAD(&s->w->value) >> 32 == upper &&
           !(upper && (XP_LOAD(&s->w->device) & XP_LATE)) &&
           (point <= v->effective || point - v->effective <= XP_OUTSTANDING_MAX);
}

/* A queue whose device waits for a point that may never come blocks a hardware channel for others. The queue
 * occupies one of the places for such queues until all these waits have ended. */
static bool has_place(xp_queue *q, bool limited)
{
    xp_queue_calls *calls = q->calls;
    if (__atomic_fetch_add(&q->unsure, 1, __ATOMIC_SEQ_CST)) /* only we add, with `order` */
        return true;
    unsigned waiting = XP_LOAD(&calls->waiting);
    do {
        if (limited && waiting >= calls->budget) {
            __atomic_fetch_sub(&q->unsure, 1, __ATOMIC_SEQ_CST);
            return false;
        }
    } while (!XP_CAS(&calls->waiting, &waiting, waiting + 1));
    return true;
}

void xp_queue_sure(xp_queue *q)
{
    if (__atomic_sub_fetch(&q->unsure, 1, __ATOMIC_SEQ_CST) == 0)
        __atomic_fetch_sub(&q->calls->waiting, 1, __ATOMIC_SEQ_CST);
}

void xp_queue_unsure(xp_queue *q)
{
    pthread_mutex_lock(&q->order);
    has_place(q, false);
    pthread_mutex_unlock(&q->order);
}

static bool take_place(xp_queue *q, bool limited)
{
    if (has_place(q, limited))
        return true;
    if (q->calls->budget == 0)
        return false;
    xp_guards_look();
    return has_place(q, limited);
}

bool xp_device_may_wait(xp_queue *q, xp_slot *s, uint64_t point, bool *unsure)
{
    bool limited = q->ordering == XP_ORDER_SHARED && !q->adopted;
    xp_view v;
    xp_read(s->w, &v);
    if (q->calls->wait.count == 0 || q->ordering == XP_ORDER_HELD)
        return false;
    if (q->calls->wait_bits == 32 && !told_by_half(s, &v, point))
        return false;
    if (point <= XP_LOAD(&s->handed))
        return true;
    if (q->adopted && q->ordering == XP_ORDER_SHARED && point > v.top)
        return false;
    if (unsure == NULL)
        return !limited;
    *unsure = take_place(q, limited);
    return *unsure;
}

/* The device stores the lower half only. The upper half is there already, however many of the lost points below it
 * have not been released. */
bool xp_host_completes(const xp_queue *q, uint64_t point)
{
    return q->calls->store.count == 0 ||
           (q->calls->store_bits == 32 && point >> 32 && (uint32_t)point <= 2 * (uint32_t)XP_OUTSTANDING_MAX);
}

int xp_hand(const xp_queue *q, xp_slot *s, uint64_t address, uint64_t point, xp_completion *c)
{
    int code = c ? xp_launch(q->calls, q->handle, c) : xp_word_operation(&q->calls->store, q->handle, address, point);
    uint64_t old = XP_LOAD(&s->handed);
    if (code == 0 && !q->adopted && XP_LOAD(&q->unsure) == 0) /* nothing before it may stay pending for ever */
        while (old < point && !XP_CAS(&s->handed, &old, point))
            ;
    return code;
}

/* --- holding ------------------------------------------------------------------------------------------------------ */

#define HOLDING INT64_MIN /* for longer */

/* Hold what comes until the point has settled. Returns 0 if it has settled already. */
static int64_t hold(xp_queue *q, xp_slot *s, uint64_t point, int kind)
{
    int rc = xp_relay_start();
    if (rc)
        return XP_CODE_SYSTEM | rc;
    rc = xp_node_add(s, point, 0, kind, q);
    return rc == 0 ? HOLDING : rc == 1 ? 0 : XP_CODE_SYSTEM | (rc < 0 ? ENOMEM : rc - 1);
}

int xp_settled(xp_slot *s, uint64_t point)
{
    if (!XP_LOAD(&s->gone) && xp_usable(s->d))
        return xp_full_state(s, point, true);
    return xp_state_here(s, point) == XP_DONE ? XP_DONE : XP_LOST;
}

void xp_note_lost(xp_slot *s, uint64_t point)
{
    pthread_mutex_lock(&xp_mu);
    xp_note_released(s, point);
    pthread_mutex_unlock(&xp_mu);
}

/* Returns 0 if it was carried out, the driver's code, or HOLDING. *again: it remains to be done. */
static int64_t held_wait(xp_queue *q, xp_operation *op, bool *again)
{
    xp_slot *s = op->s;
    if (!xp_usable(s->d))
        return XP_CODE_SYSTEM | ESHUTDOWN; /* this process has left, and the work must not run without its wait */
    int state = xp_settled(s, op->point);
    if (state == XP_LOST) {
        uint32_t cause = XP_RELAXED(&s->w->cause);
        pthread_mutex_lock(&q->mu);
        lose_held(q, cause ? cause : XP_CAUSE_DEATH, XP_RELAXED(&s->w->blame));
        xp_spoil_by(q, s, op->at);
        pthread_mutex_unlock(&q->mu);
        xp_note_lost(s, op->point);
    }
    if (state != XP_PENDING)
        return 0;
    if (!xp_device_may_wait(q, s, op->point, NULL)) { /* what tends the device's waits knows of no other one now */
        int64_t code = hold(q, s, op->point, XP_HOLD);
        *again = code == 0;
        return code;
    }
    int rc = xp_guard(s, op->point, q, op->at, false);
    *again = rc == 1;
    if (rc)
        return rc == 1 ? 0 : XP_CODE_SYSTEM | (rc == XP_TOO_FAR ? EOVERFLOW : rc < 0 ? ENOMEM : rc - 1);
    return xp_word_operation(&q->calls->wait, q->handle, op->address, op->point);
}

static int64_t held_signal(xp_queue *q, xp_operation *op, bool *again)
{
    xp_slot *s = op->s;
    if (!xp_usable(s->d))
        return 0; /* this process has left, and has lost the points that it owed */
    bool host = op->host || xp_host_completes(q, op->point) || (XP_LOAD(&s->w->device) & XP_LATE);
    xp_completion *c = host ? xp_completion_new(s, op->point) : NULL;
    if (host && c == NULL)
        return XP_CODE_SYSTEM | ENOMEM;
    pthread_mutex_lock(&q->mu); /* a loss finds the point either here or in the list */
    bool pending = xp_state_here(s, op->point) == XP_PENDING, lost = pending && op->lost;
    bool listed = pending && !lost && XP_LOAD(&q->waits) != 0, memory = !listed || xp_make_room(q);
    if (listed && memory)
        xp_add_record(q, s, op->point, op->at, c);
    op->handed = pending && !lost && memory;
    pthread_mutex_unlock(&q->mu);
    if (!op->handed) {
        xp_completion_unref(c);
        if (!lost || xp_lose(s->w, s->d->bell, op->lost, op->pid, op->point))
            return memory ? 0 : XP_CODE_SYSTEM | ENOMEM;
        int64_t code = hold(q, s, op->point - 1, XP_HOLD_RECORDED);
        *again = code == 0;
        return code;
    }
    return xp_hand(q, s, op->address, op->point, c);
}

/* Called with q->order. Carry out held operations as far as possible. Returns 0, or the code of the first failure. */
static int64_t advance(xp_queue *q)
{
    while (q->first) {
        xp_operation *op = q->first;
        bool again = false;
        uint64_t done;
        int64_t code;
        if (op->kind == XP_HELD_WAIT)
            code = held_wait(q, op, &again);
        else if (op->kind == XP_HELD_SIGNAL)
            code = held_signal(q, op, &again);
        else
            code = xp_invoke_all(op->calls, op->count, &done);
        if (code)
            return code == HOLDING ? 0 : code;
        if (!again)
            pop(q);
    }
    return 0;
}

/* Called with q->order: the first held operation failed. Later ones are not carried out, and their points are lost
 * in order. What the driver has may still complete, or Python may know better. */
static void fail(xp_queue *q, int64_t code)
{
    uint64_t me = (uint64_t)getpid();
    pthread_mutex_lock(&q->mu);
    xp_operation *op = q->first, *next;
    bool lost = op->kind == XP_HELD_SIGNAL && op->lost; /* without memory, it cannot even be lost in its order */
    if (lost && xp_usable(op->s->d))
        xp_lose_late(op->s, 0, op->lost, op->pid);
    q->failed_at = q->failed ? q->failed_at : op->at;
    q->failed = q->failed ? q->failed : code;
    op->handed = false; /* a signal's store will not come */
    q->first = NULL;
    q->last = &q->first;
    for (; op; op = next) {
        next = op->next;
        op->next = NULL;
        if (op->kind == XP_HELD_SIGNAL && !lost) {
            *q->last = op;
            q->last = &op->next;
        } else {
            operation_free(op);
            q->held--;
        }
        lost = false;
    }
    tell_drained(q);
    lose_held(q, XP_CAUSE_QUEUE, me);
    pthread_mutex_unlock(&q->mu);
}

int64_t xp_settings(const xp_queue *q) { return xp_word_operation(&q->calls->relay, q->handle, 0, 0); }

/* On the relay. */
static void resume(xp_job *job)
{
    xp_queue *q = (xp_queue *)((char *)job - offsetof(xp_queue, job));
    int64_t code;
    pthread_mutex_lock(&q->order);
    while (q->first && ((code = xp_settings(q)) || (code = advance(q))))
        fail(q, code);
    pthread_mutex_unlock(&q->order);
    xp_queue_unref(q);
}

static void resume_later(xp_queue *q)
{
    q->job.run = resume;
    xp_relay_post(&q->job);
}

int64_t xp_begin(xp_queue *q)
{
    int64_t code = advance(q);
    while (code && q->first)
        pop(q);
    return code;
}

/* --- the queue ---------------------------------------------------------------------------------------------------- */

static void ref(xp_queue *q) { __atomic_fetch_add(&q->refs, 1, __ATOMIC_RELAXED); }
static void count_waits(xp_queue *q, int more) { __atomic_fetch_add(&q->waits, (unsigned)more, __ATOMIC_SEQ_CST); }

xp_queue *xp_queue_new(uint64_t number, uint64_t handle, xp_queue_calls *calls, int ordering, bool adopted)
{
    static const xp_queue_ops ops = {ref, xp_queue_unref, count_waits, xp_queue_sure, lose_behind, resume_later};
    xp_queue *q = calloc(1, sizeof *q);
    if (q == NULL)
        return NULL;
    *q = (xp_queue){.ops = &ops, .refs = 1, .born = xp_fork_count, .number = number, .handle = handle, .calls = calls,
                    .ordering = ordering, .adopted = adopted, .last = &q->first};
    __atomic_fetch_add(&calls->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_init(&q->order, NULL);
    pthread_mutex_init(&q->mu, NULL);
    return q;
}

void xp_queue_unref(xp_queue *q)
{
    if (__atomic_sub_fetch(&q->refs, 1, __ATOMIC_ACQ_REL))
        return;
    while (q->record_count)
        drop_first_record(q);
    while (q->first) {
        xp_operation *op = q->first;
        q->first = op->next;
        operation_free(op);
    }
    if (q->own)
        xp_slot_unref(q->own);
    free(q->spare[0]);
    free(q->spare[1]);
    free(q->records);
    xp_queue_calls_unref(q->calls);
    free(q);
}
