/* What a stream queue does with points: it submits them, and has its device store them and wait for them. Submitting
 * a point and queueing its store are one step. */
#include "held.h"

#include <stdlib.h>
#include <unistd.h>

bool xp_queue_forked(const xp_queue *q) { return q->born != XP_RELAXED(&xp_fork_count); }

xp_queue_status xp_queue_look(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    xp_queue_status found = {q->at, q->first ? q->first->at - 1 : q->at, q->held, q->failed_at, q->failed};
    pthread_mutex_unlock(&q->mu);
    return found;
}

uint32_t *xp_queue_drained(xp_queue *q) { return &q->drained; }

void xp_queue_told(xp_queue *q, uint64_t at)
{
    pthread_mutex_lock(&q->mu);
    q->told = q->told > at ? q->told : at;
    pthread_mutex_unlock(&q->mu);
}

/* Needs no order. */
int64_t xp_queue_check(xp_queue *q) { return q->adopted ? xp_captured(q->calls, q->handle) : 0; }

/* --- operations --------------------------------------------------------------------------------------------------- */

void xp_queue_lost(xp_queue *q, xp_slot *s)
{
    pthread_mutex_lock(&q->mu);
    xp_spoil_by(q, s, ++q->at);
    pthread_mutex_unlock(&q->mu);
}

int xp_queue_wait(xp_queue *q, xp_slot *s, uint64_t address, uint64_t point, int64_t *code)
{
    int rc = 0;
    bool unsure = false;
    *code = 0;
    xp_note_act(s, XP_ACT_WAITED);
    pthread_mutex_lock(&q->order);
    if (q->failed) {
        *code = q->failed;
    } else if (q->first == NULL && xp_device_may_wait(q, s, point, &unsure)) {
        rc = xp_guard(s, point, q, xp_next_at(q), unsure);
        if (rc && unsure)
            xp_queue_sure(q);
        if (rc == 0)
            *code = xp_word_operation(&q->calls->wait, q->handle, address, point);
    } else if (xp_settled(s, point) == XP_PENDING || q->first) {
        xp_operation *op = q->adopted ? NULL : xp_operation_new(XP_HELD_WAIT, s, address, point, 0);
        if (op) {
            bool alone = q->first == NULL;
            pthread_mutex_lock(&q->mu);
            xp_append(q, op);
            pthread_mutex_unlock(&q->mu);
            *code = alone ? xp_begin(q) : 0;
        } else if (q->adopted) {
            *code = XP_CODE_NOT_HELD;
        } else {
            rc = -1;
        }
    } else {
        rc = 1;
    }
    if (rc == 1 && xp_settled(s, point) == XP_LOST) {
        xp_queue_lost(q, s);
        xp_note_lost(s, point);
    }
    pthread_mutex_unlock(&q->order);
    return rc;
}

/* Called with q->mu. A signal behind a loss must not end the loss. */
static bool is_spent(const xp_queue *q)
{
    xp_view v;
    xp_read(q->own->w, &v);
    return q->losses != q->own_since || xp_state(&v, v.top) == XP_LOST;
}

static void note_host(xp_slot *s, uint64_t point)
{
    pthread_mutex_lock(&s->mu);
    s->last_host = s->last_host > point ? s->last_host : point;
    pthread_mutex_unlock(&s->mu);
}

/* With q->order. */
static void signal_now(xp_queue *q, xp_slot *s, uint64_t address, xp_signalled *done)
{
    bool host = false, limited = q->ordering != XP_ORDER_DEVICE && !q->adopted;
    bool holds = q->first != NULL || (limited && q->calls->budget == 0);
    xp_completion *c = NULL;
    bool alone = q->first == NULL;
    pthread_mutex_lock(&q->mu); /* a loss finds in the list every point that we have submitted */
    uint32_t lost = q->lost_at > q->told ? q->lost : 0;
    bool listed = lost || XP_LOAD(&q->waits) != 0;
    done->memory = (!holds || xp_have_spares(q)) && (!listed || xp_make_room(q));
    if (s == q->own && (lost || is_spent(q)))
        done->wrong = "the queue's own timeline has met a loss";
    else if (done->memory)
        done->wrong = xp_submit(s, q->number, q->calls->store.count != 0, &done->point, &done->after, &host);
    uint64_t point = done->point;
    if (point) {
        holds = holds && (!alone || done->after);
        if (!host && (lost || xp_host_completes(q, point))) {
            host = true;
            note_host(s, point);
        }
        if (holds) {
            if (done->after)
                xp_append(q, xp_take_spare(q, 0, XP_HELD_WAIT, s, address, done->after));
            xp_operation *op = xp_take_spare(q, 1, XP_HELD_SIGNAL, s, address, point);
            op->host = host;
            op->lost = lost;
            op->pid = q->lost_pid;
            xp_append(q, op);
            done->after = 0; /* the queue takes care of it */
        } else if (host && (c = xp_completion_new(s, point)) == NULL) {
            xp_lose_late(s, 0, XP_CAUSE_QUEUE, (uint64_t)getpid());
            done->memory = false;
        } else {
            uint64_t at = ++q->at;
            if (c) {
                c->lost = lost;
                c->pid = q->lost_pid;
            }
            if (listed)
                xp_add_record(q, s, point, at, c);
        }
    }
    pthread_mutex_unlock(&q->mu);
    if (point == 0 || !done->memory)
        return;
    if (holds) {
        done->code = alone ? xp_begin(q) : 0;
    } else if (done->after) {
        xp_completion_unref(c); /* `finish` looks for it in the list */
    } else {
        done->code = xp_hand(q, s, address, point, c);
    }
}

void xp_queue_signal(xp_queue *q, xp_slot *s, uint64_t address, xp_signalled *done)
{
    *done = (xp_signalled){.memory = true};
    pthread_mutex_lock(&q->order);
    done->code = q->failed ? q->failed : xp_queue_check(q);
    if (done->code == 0)
        signal_now(q, s, address, done);
    pthread_mutex_unlock(&q->order);
}

bool xp_queue_finish(xp_queue *q, xp_slot *s, uint64_t point, int64_t *code)
{
    xp_completion *c = NULL;
    pthread_mutex_lock(&q->order);
    xp_operation *op = q->first ? xp_operation_new(XP_HELD_SIGNAL, s, 0, point, 0) : NULL;
    pthread_mutex_lock(&q->mu);
    for (uint32_t i = q->record_count; i-- && c == NULL;) {
        xp_record *r = xp_record_at(q, i);
        if (r->s == s && r->point == point && (c = r->completion))
            __atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
    }
    if (op) {
        op->host = true;
        op->lost = c ? XP_LOAD(&c->lost) : 0;
        op->pid = c ? c->pid : 0;
        xp_append(q, op);
    }
    pthread_mutex_unlock(&q->mu);
    if (q->first) {
        xp_completion_unref(c);
        pthread_mutex_unlock(&q->order);
        *code = 0;
        return op != NULL;
    }
    if (c == NULL)
        c = xp_completion_new(s, point);
    if (c)
        *code = xp_launch(q->calls, q->handle, c);
    pthread_mutex_unlock(&q->order);
    return c != NULL;
}

/* With q->order. */
static bool submit(xp_queue *q, const xp_call *calls, uint32_t count, uint64_t *at, int64_t *code)
{
    *code = 0;
    xp_operation *op = q->first ? xp_operation_new(XP_HELD_CALLS, NULL, 0, 0, count) : NULL;
    bool memory = op || q->first == NULL;
    if (op) {
        memcpy(op->calls, calls, count * sizeof *calls);
        pthread_mutex_lock(&q->mu);
        xp_append(q, op);
        *at = op->at;
        pthread_mutex_unlock(&q->mu);
    } else if (memory) {
        uint64_t done;
        *at = xp_next_at(q);
        *code = xp_invoke_all(calls, count, &done);
        *at = *code ? done : *at;
    }
    return memory;
}

bool xp_queue_submit(xp_queue *q, const xp_call *calls, uint32_t count, uint64_t *at, int64_t *code)
{
    pthread_mutex_lock(&q->order);
    bool memory = submit(q, calls, count, at, code);
    pthread_mutex_unlock(&q->order);
    return memory;
}

/* --- commands of programs that have no Python --------------------------------------------------------------------- */

bool xp_queue_works(const xp_queue_calls *calls) { return calls->copy.count && calls->fills[0].count; }

void xp_queue_own(xp_queue *q, xp_slot *s, uint64_t address)
{
    xp_slot_ref(s);
    XP_STORE(&s->address, address);
    pthread_mutex_lock(&q->order);
    pthread_mutex_lock(&q->mu);
    xp_slot *old = q->own;
    q->own = s;
    q->own_since = q->losses;
    pthread_mutex_unlock(&q->mu);
    pthread_mutex_unlock(&q->order);
    if (old)
        xp_slot_unref(old);
}

bool xp_queue_spent(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    bool spent = q->own == NULL || is_spent(q);
    pthread_mutex_unlock(&q->mu);
    return spent;
}

/* Called with q->order: the driver has refused to store the point. If it were lost, the points before it would be
 * lost, too. */
static bool complete_by_host(xp_queue *q, xp_slot *s, uint64_t point)
{
    xp_completion *c = xp_completion_new(s, point);
    if (c == NULL)
        return false;
    note_host(s, point); /* a later store of the device must not come first */
    pthread_mutex_lock(&q->mu);
    for (uint32_t i = q->record_count; i--;) {
        xp_record *r = xp_record_at(q, i);
        if (r->s == s && r->point == point && r->completion == NULL) {
            r->completion = c;
            __atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
        }
    }
    pthread_mutex_unlock(&q->mu);
    return xp_launch(q->calls, q->handle, c) == 0;
}

static bool met_a_loss(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    bool met = q->lost_at > q->told || is_spent(q);
    pthread_mutex_unlock(&q->mu);
    return met;
}

/* With q->order. */
static bool work_now(xp_queue *q, const xp_call *calls, uint32_t count, xp_signalled *done)
{
    uint64_t at;
    int64_t code = q->own && !xp_slot_wrong(q->own) && !q->failed && !met_a_loss(q) ? xp_settings(q) : -1;
    if (code || (count && !(submit(q, calls, count, &at, &code) && code == 0)))
        return false;
    signal_now(q, q->own, q->own->address, done);
    if (done->point && done->code && done->memory && !q->first && complete_by_host(q, q->own, done->point))
        done->code = 0;
    if (done->point && (done->code || done->after || !done->memory))
        xp_fail(q->own, XP_CAUSE_QUEUE); /* it will never complete */
    return done->point && !done->code && !done->after && done->memory;
}

bool xp_queue_work(xp_queue *q, const xp_work *work, xp_slot **s, uint64_t *point)
{
    xp_call *calls = NULL;
    uint32_t count = 0;
    xp_signalled done = {.memory = true};
    bool good = !xp_queue_forked(q) && (work == NULL || xp_calls_for(q->calls, q->handle, work, &calls, &count));
    if (good) {
        pthread_mutex_lock(&q->order);
        good = work_now(q, calls, count, &done);
        *s = q->own;
        *point = done.point;
        if (good)
            xp_slot_ref(q->own);
        pthread_mutex_unlock(&q->order);
    }
    free(calls);
    return good;
}

bool xp_queue_after(xp_queue *q, xp_slot *s, uint64_t point)
{
    int64_t code;
    uint64_t address = XP_LOAD(&s->address);
    if (xp_queue_forked(q) || xp_slot_wrong(s) || address == 0)
        return false;
    if (xp_state_here(s, point) == XP_DONE)
        return true;
    if (point > XP_LOAD(&s->handed) || xp_settings(q))
        return false;
    int rc = xp_queue_wait(q, s, address, point, &code);
    return (rc == 0 || rc == 1) && code == 0;
}
