/* A stream queue calls the functions of a vendor's driver by their addresses, without the GIL, so that submitting a
 * point and queueing its store are one step.
 *
 * What a queue signals behind a lost wait must be lost, too. So while a queue has guarded waits it keeps a list of its
 * signals, which the warden loses before it releases the device.
 *
 * Where the device cannot or must not wait for a point, the queue holds that wait and everything behind it, and the
 * relay hands it to the driver when the point is done or lost: docs/events-protocol.md, "Queues that hold".
 *
 * There are two mutexes. `order` is held from a decision until the driver has the call, so that the driver sees the
 * order in which points were submitted. It is outermost, and the warden never takes it. `mu` is never held during a
 * driver call, since the driver's host functions must be able to run; the warden takes it while it holds xp_mu. */
#include "events.h"

#include "queue.h"
#include "relay.h"

#include <stdlib.h>
#include <unistd.h>

/* --- calls -------------------------------------------------------------------------------------------------------- */

#define U uint64_t

static int invoke(const xp_call *c)
{
    const uint64_t *a = c->arguments;
    uintptr_t f = (uintptr_t)c->function;
    switch (c->count) {
    case 0: return ((int (*)(void))f)();
    case 1: return ((int (*)(U))f)(a[0]);
    case 2: return ((int (*)(U, U))f)(a[0], a[1]);
    case 3: return ((int (*)(U, U, U))f)(a[0], a[1], a[2]);
    case 4: return ((int (*)(U, U, U, U))f)(a[0], a[1], a[2], a[3]);
    case 5: return ((int (*)(U, U, U, U, U))f)(a[0], a[1], a[2], a[3], a[4]);
    case 6: return ((int (*)(U, U, U, U, U, U))f)(a[0], a[1], a[2], a[3], a[4], a[5]);
    case 7: return ((int (*)(U, U, U, U, U, U, U))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    case 8: return ((int (*)(U, U, U, U, U, U, U, U))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    case 9: return ((int (*)(U, U, U, U, U, U, U, U, U))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
    default:
        return ((int (*)(U, U, U, U, U, U, U, U, U, U))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]);
    }
}

/* *done: how many came before the one that failed. */
static int invoke_all(const xp_call *calls, uint32_t count, uint64_t *done)
{
    int code = 0;
    for (*done = 0; *done < count && (code = invoke(&calls[*done])) == 0; ++*done)
        ;
    return code;
}

#define RELAXED 2 /* a thread's capture mode, as CUDA and HIP number it */

/* A call as its step says. */
static xp_call filled_in(const xp_step *step, const uint64_t *values)
{
    xp_call call = {.function = step->call.function, .count = step->call.count};
    for (uint32_t k = 0; k < call.count; k++)
        call.arguments[k] = step->kinds[k] == XP_ARG_FIXED ? step->call.arguments[k] : values[step->kinds[k]];
    return call;
}

/* The driver's code. `values` by the kind of argument. `given`: the driver was given DATA, and will call FUNCTION. */
static int perform(const xp_recipe *recipe, uint64_t *values, bool *given)
{
    uint64_t made = 0;
    int code = 0, mode;
    for (uint32_t i = 0; i < recipe->count; i++) {
        const xp_step *step = &recipe->steps[i];
        if (code && !(step->cleanup && made))
            continue;
        bool gives = false;
        values[XP_ARG_OUT] = (uintptr_t)&made;
        values[XP_ARG_MADE] = made;
        values[XP_ARG_MODE] = (uintptr_t)&mode;
        mode = RELAXED;
        for (uint32_t k = 0; k < step->call.count; k++)
            gives = gives || step->kinds[k] == XP_ARG_DATA;
        xp_call call = filled_in(step, values);
        int rc = invoke(&call);
        if (gives && rc == 0)
            *given = true;
        code = code ? code : rc;
    }
    return code;
}

void xp_queue_calls_unref(xp_queue_calls *calls)
{
    if (calls && __atomic_sub_fetch(&calls->refs, 1, __ATOMIC_ACQ_REL) == 0)
        free(calls);
}

typedef struct {
    xp_job job;
    uint32_t count;
    xp_call calls[];
} calls_job;

static void run_calls(xp_job *job)
{
    calls_job *j = (calls_job *)job;
    for (uint32_t i = 0; i < j->count; i++)
        invoke(&j->calls[i]); /* nothing can be done about a release that fails */
    free(j);
}

int xp_relay_calls(const xp_call *calls, uint32_t count)
{
    int rc = xp_relay_start();
    calls_job *j = rc ? NULL : malloc(sizeof *j + count * sizeof *calls);
    if (j == NULL)
        return rc ? rc : ENOMEM;
    j->job.run = run_calls;
    j->count = count;
    memcpy(j->calls, calls, count * sizeof *calls);
    xp_relay_post(&j->job);
    return 0;
}

/* --- the queue ---------------------------------------------------------------------------------------------------- */

/* A point that a host function completes. The list and the function each hold a reference. */
typedef struct {
    unsigned refs;
    uint32_t lost; /* a wait before it was, and why; by whom: */
    uint64_t pid;
    xp_slot *s;
    uint64_t point;
} completion;

typedef struct {
    xp_slot *s;
    uint64_t point, at;
    completion *completion; /* or NULL: the device stores it */
} record;

enum { HELD_WAIT, HELD_SIGNAL, HELD_CALLS };

typedef struct operation {
    struct operation *next;
    int kind;
    uint64_t at;
    xp_slot *s;
    uint64_t address, point;
    bool host, handed; /* a signal: a host function completes it; it is in the list of records */
    uint32_t lost;     /* a wait before it was, and why; by whom: */
    uint64_t pid;
    uint32_t count;
    xp_call calls[];
} operation;

struct xp_queue {
    xp_job job; /* to go on with what is held */
    unsigned refs, waits, unsure, born; /* unsure: those of its waits whose points may never come */
    uint64_t number, handle;
    xp_queue_calls *calls;
    int ordering;
    bool adopted; /* somebody else has the queue, too */
    pthread_mutex_t order;
    operation *spare[2]; /* `order`; so that what is submitted is not lost for want of memory */
    pthread_mutex_t mu; /* what follows; what is held changes only with `order`, too */
    uint64_t at;        /* counts operations */
    record *records;    /* a ring */
    uint32_t first_record, record_count, room;
    operation *first, **last;
    uint32_t held, drained; /* how many operations; a futex word */
    uint64_t failed_at;
    int64_t failed;
    /* The newest lost wait, if the user was not told of it: what is signalled behind it is lost. An adopted queue has
     * none, since its users need not ask us. */
    uint64_t lost_at, told;
    uint32_t lost;
    uint64_t lost_pid;
    uint64_t losses; /* how many lost waits it has met */
    uint64_t own_since;           /* how many it had met when it got: */
    xp_slot *own;                 /* its timeline, or NULL; `order`, too */
};

static void completion_unref(completion *c)
{
    if (c == NULL || __atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL))
        return;
    xp_slot_unref(c->s);
    free(c);
}

static completion *completion_new(xp_slot *s, uint64_t point)
{
    completion *c = malloc(sizeof *c);
    if (c) {
        *c = (completion){.refs = 1, .s = s, .point = point};
        xp_slot_ref(s);
    }
    return c;
}

/* The stream has come here, so everything before the point is complete or lost. A driver whose context is broken never
 * runs this; then the completion is never freed. */
static void complete(completion *c, bool failed)
{
    xp_slot *s = c->s;
    xp_view v;
    if (xp_usable(s->d)) { /* else this process has left, and lost what it owed */
        xp_read(s->w, &v);
        uint32_t lost = XP_LOAD(&c->lost);
        if (xp_state(&v, c->point) != XP_PENDING || c->point > v.top) {
            /* it is lost, and a release is final */
        } else if (lost || failed) {
            xp_lose(s->d, s->w, lost ? lost : XP_CAUSE_QUEUE, lost ? c->pid : (uint64_t)getpid());
        } else {
            xp_complete(s, c->point);
        }
    }
    completion_unref(c);
}

static void host_function(void *data) { complete(data, false); }

static void event_callback(void *event, int32_t status, void *data)
{
    (void)event;
    complete(data, status < 0);
}

static record *record_at(xp_queue *q, uint32_t i) { return &q->records[(q->first_record + i) % q->room]; }

static int state_of(const xp_slot *s, uint64_t point)
{
    xp_view v;
    xp_read(s->w, &v);
    return xp_state(&v, point);
}

static int record_state(const record *r)
{
    return XP_LOAD(&r->s->gone) || !xp_usable(r->s->d) ? XP_DONE : state_of(r->s, r->point);
}

/* The point is lost, but its store is still to come. It would release devices before others have lost what they
 * must. */
static bool store_to_come(const record *r, int state)
{
    return state == XP_LOST && r->completion == NULL && XP_LOAD(&r->s->w->value) < r->point;
}

static void drop_first_record(xp_queue *q)
{
    record *r = record_at(q, 0);
    completion_unref(r->completion);
    xp_slot_unref(r->s);
    q->first_record = (q->first_record + 1) % q->room;
    q->record_count--;
}

/* Make room for one more record. With q->mu. */
static bool make_room(xp_queue *q)
{
    while (q->record_count) {
        int state = record_state(record_at(q, 0));
        if (state == XP_PENDING || store_to_come(record_at(q, 0), state))
            break;
        drop_first_record(q);
    }
    if (q->record_count < q->room)
        return true;
    uint32_t room = q->room ? 2 * q->room : 8;
    record *grown = malloc(room * sizeof *grown);
    if (grown == NULL)
        return false;
    for (uint32_t i = 0; i < q->record_count; i++)
        grown[i] = *record_at(q, i);
    free(q->records);
    q->records = grown;
    q->room = room;
    q->first_record = 0;
    return true;
}

/* With q->mu, once there is room. */
static void add_record(xp_queue *q, xp_slot *s, uint64_t point, uint64_t at, completion *c)
{
    if (c)
        c->refs++; /* nobody else has it yet */
    xp_slot_ref(s);
    *record_at(q, q->record_count++) = (record){s, point, at, c};
}

static void operation_set(operation *op, int kind, xp_slot *s, uint64_t address, uint64_t point, uint32_t count)
{
    *op = (operation){.kind = kind, .s = s, .address = address, .point = point, .count = count};
    if (s)
        xp_slot_ref(s);
}

static operation *operation_new(int kind, xp_slot *s, uint64_t address, uint64_t point, uint32_t count)
{
    operation *op = malloc(sizeof *op + count * sizeof *op->calls);
    if (op)
        operation_set(op, kind, s, address, point, count);
    return op;
}

/* With q->order. */
static bool have_spares(xp_queue *q)
{
    for (int i = 0; i < 2; i++)
        if (q->spare[i] == NULL && (q->spare[i] = malloc(sizeof **q->spare)) == NULL)
            return false;
    return true;
}

static operation *take_spare(xp_queue *q, int i, int kind, xp_slot *s, uint64_t address, uint64_t point)
{
    operation *op = q->spare[i];
    q->spare[i] = NULL;
    operation_set(op, kind, s, address, point, 0);
    return op;
}

static void operation_free(operation *op)
{
    if (op && op->s)
        xp_slot_unref(op->s);
    free(op);
}

/* With q->order and q->mu. */
static void append(xp_queue *q, operation *op)
{
    op->at = ++q->at;
    *q->last = op;
    q->last = &op->next;
    q->held++;
}

/* With q->order. */
static uint64_t next_at(xp_queue *q)
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

/* With q->order: remove the first held operation, which was carried out. */
static void pop(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    operation *op = q->first;
    q->first = op->next;
    if (q->first == NULL)
        q->last = &q->first;
    q->held--;
    tell_drained(q);
    pthread_mutex_unlock(&q->mu);
    operation_free(op);
}

xp_queue *xp_queue_new(uint64_t number, uint64_t handle, xp_queue_calls *calls, int ordering, bool adopted)
{
    xp_queue *q = calloc(1, sizeof *q);
    if (q == NULL)
        return NULL;
    *q = (xp_queue){.refs = 1, .born = xp_fork_count, .number = number, .handle = handle, .calls = calls,
                    .ordering = ordering, .adopted = adopted, .last = &q->first};
    __atomic_fetch_add(&calls->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_init(&q->order, NULL);
    pthread_mutex_init(&q->mu, NULL);
    return q;
}

void xp_queue_ref(xp_queue *q) { __atomic_fetch_add(&q->refs, 1, __ATOMIC_RELAXED); }

void xp_queue_unref(xp_queue *q)
{
    if (__atomic_sub_fetch(&q->refs, 1, __ATOMIC_ACQ_REL))
        return;
    while (q->record_count)
        drop_first_record(q);
    while (q->first) {
        operation *op = q->first;
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

bool xp_queue_forked(const xp_queue *q) { return q->born != XP_RELAXED(&xp_fork_count); }
void xp_queue_waits(xp_queue *q, int more) { __atomic_fetch_add(&q->waits, (unsigned)more, __ATOMIC_SEQ_CST); }

uint64_t xp_queue_handed(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    uint64_t at = q->first ? q->first->at - 1 : q->at;
    pthread_mutex_unlock(&q->mu);
    return at;
}

uint64_t xp_queue_place(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    uint64_t at = q->at;
    pthread_mutex_unlock(&q->mu);
    return at;
}

uint32_t xp_queue_held(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    uint32_t held = q->held;
    pthread_mutex_unlock(&q->mu);
    return held;
}

bool xp_queue_failure(xp_queue *q, uint64_t *at, int64_t *code)
{
    pthread_mutex_lock(&q->mu);
    *at = q->failed_at;
    *code = q->failed;
    pthread_mutex_unlock(&q->mu);
    return *code != 0;
}

uint32_t *xp_queue_drained(xp_queue *q) { return &q->drained; }

/* --- losing ------------------------------------------------------------------------------------------------------- */

/* A wait at that place is lost. With q->mu. */
static void spoil(xp_queue *q, uint64_t at, uint32_t cause, uint64_t pid)
{
    if (q->adopted || at <= q->told || at <= q->lost_at)
        return;
    q->lost_at = at;
    q->lost = cause;
    q->lost_pid = pid;
}

static void spoil_by(xp_queue *q, xp_slot *s, uint64_t at)
{
    uint32_t cause = XP_RELAXED(&s->w->cause);
    q->losses++;
    spoil(q, at, cause ? cause : XP_CAUSE_DEATH, XP_RELAXED(&s->w->blame));
}

void xp_queue_told(xp_queue *q, uint64_t at)
{
    pthread_mutex_lock(&q->mu);
    q->told = q->told > at ? q->told : at;
    pthread_mutex_unlock(&q->mu);
}

/* Lose the held signals. A signal that cannot be lost now, since an earlier point of its event is outstanding, is lost
 * when its turn comes. With q->mu. */
static void lose_held(xp_queue *q, uint32_t cause, uint64_t pid)
{
    for (operation *op = q->first; op; op = op->next) {
        if (op->kind != HELD_SIGNAL || op->handed || op->lost)
            continue;
        op->lost = cause;
        op->pid = pid;
        if (xp_usable(op->s->d))
            xp_lose_from(op->s, op->point, cause, pid);
    }
}

int xp_queue_lose(xp_queue *q, uint64_t at, uint32_t cause, uint64_t pid, bool first)
{
    bool to_come = false, put_off = false;
    pthread_mutex_lock(&q->mu);
    for (uint32_t i = 0; i < q->record_count; i++) {
        record *r = record_at(q, i);
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
        } else { /* what a device stores comes behind no other queue's point */
            put_off = true;
        }
    }
    lose_held(q, cause, pid); /* held signals come after every wait that the device has */
    q->losses += first;
    spoil(q, at, cause, pid);
    pthread_mutex_unlock(&q->mu);
    return put_off ? XP_PUT_OFF : to_come ? XP_STORES_TO_COME : XP_ALL_LOST;
}

/* --- calling the driver (with q->order) --------------------------------------------------------------------------- */

static int64_t check(const xp_queue *q)
{
    if (!q->adopted)
        return 0;
    int32_t status = 0;
    bool given;
    uint64_t values[XP_ARG_KINDS] = {[XP_ARG_QUEUE] = q->handle, [XP_ARG_STATUS_OUT] = (uintptr_t)&status};
    int code = perform(&q->calls->captured, values, &given);
    return code ? code : status ? XP_CODE_CAPTURED : 0;
}

int64_t xp_queue_check(xp_queue *q) { return check(q); } /* needs no order */

static int word_operation(const xp_queue *q, const xp_recipe *recipe, uint64_t address, uint64_t point)
{
    bool given;
    uint64_t values[XP_ARG_KINDS] = {[XP_ARG_QUEUE] = q->handle, [XP_ARG_ADDRESS] = address, [XP_ARG_POINT] = point,
                                     [XP_ARG_POINT_LOW] = (uint32_t)point};
    return perform(recipe, values, &given);
}

/* Queue the host function of a point; takes over the reference. */
static int launch(const xp_queue *q, completion *c)
{
    bool given = false;
    uintptr_t function = q->calls->event_callback ? (uintptr_t)event_callback : (uintptr_t)host_function;
    uint64_t values[XP_ARG_KINDS] = {[XP_ARG_QUEUE] = q->handle, [XP_ARG_FUNCTION] = function,
                                     [XP_ARG_DATA] = (uintptr_t)c};
    int code = perform(&q->calls->host, values, &given);
    if (!given)
        completion_unref(c);
    return code;
}

/* The device compares the lower halves only. It must not see an earlier value as later, so the upper halves are equal
 * from now on: a store that comes late could change that. Nor must the value leave the point's half before the device
 * looks: what is left of it is at least 2^31 signals. */
static bool told_by_half(xp_slot *s, const xp_view *v, uint64_t point)
{
    uint64_t upper = point >> 32;
    return (uint32_t)point < 1u << 31 && XP_LOAD(&s->w->value) >> 32 == upper &&
           !(upper && (XP_LOAD(&s->w->device) & XP_LATE)) &&
           (point <= v->effective || point - v->effective <= XP_OUTSTANDING_MAX);
}

/* A queue that waits in its device for what may never come keeps a hardware channel from others. It has a place among
 * those that may until all such waits of it are over. */
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

/* May the device wait for that point, or must the queue hold what comes? *unsure: it may, and has a place. Without
 * `unsure` no place is taken. */
static bool device_may_wait(xp_queue *q, xp_slot *s, uint64_t point, bool *unsure)
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

/* The device stores the lower half only: the upper one is there already, however much of what is lost below the point
 * has not been let go. */
static bool host_completes(const xp_queue *q, uint64_t point)
{
    return q->calls->store.count == 0 ||
           (q->calls->store_bits == 32 && point >> 32 && (uint32_t)point <= 2 * (uint32_t)XP_OUTSTANDING_MAX);
}

static void note_host(xp_slot *s, uint64_t point)
{
    pthread_mutex_lock(&s->mu);
    s->last_host = s->last_host > point ? s->last_host : point;
    pthread_mutex_unlock(&s->mu);
}

/* The driver has it, behind nothing that may never come. */
static void note_handed(const xp_queue *q, xp_slot *s, uint64_t point)
{
    uint64_t old = XP_LOAD(&s->handed);
    if (!q->adopted && XP_LOAD(&q->unsure) == 0)
        while (old < point && !XP_CAS(&s->handed, &old, point))
            ;
}

/* --- what is held ------------------------------------------------------------------------------------------------- */

#define HOLDING INT64_MIN /* for longer */

/* Hold what comes until the point has settled. 0: it has settled already. */
static int64_t hold(xp_queue *q, xp_slot *s, uint64_t point, int kind)
{
    int rc = xp_relay_start();
    if (rc)
        return XP_CODE_SYSTEM | rc;
    rc = xp_node_add(s, point, 0, kind, q);
    return rc == 0 ? HOLDING : rc == 1 ? 0 : XP_CODE_SYSTEM | (rc < 0 ? ENOMEM : rc - 1);
}

/* For an event that was closed here, DONE or LOST all the same: nobody can know any more. */
static int settled(xp_slot *s, uint64_t point)
{
    if (!XP_LOAD(&s->gone) && xp_usable(s->d))
        return xp_full_state(s, point, true);
    return state_of(s, point) == XP_DONE ? XP_DONE : XP_LOST;
}

/* While the loss is put off, the slot does not say that it is one. */
static void note_released(xp_slot *s, uint64_t point)
{
    pthread_mutex_lock(&xp_mu);
    xp_note_released(s, point);
    pthread_mutex_unlock(&xp_mu);
}

/* Returns 0 if it was carried out, the driver's code, or HOLDING. *again: it is still to be done. */
static int64_t held_wait(xp_queue *q, operation *op, bool *again)
{
    xp_slot *s = op->s;
    if (!xp_usable(s->d))
        return XP_CODE_SYSTEM | ESHUTDOWN; /* this process has left; the work must not run without its wait */
    int state = settled(s, op->point);
    if (state == XP_LOST) {
        uint32_t cause = XP_RELAXED(&s->w->cause);
        pthread_mutex_lock(&q->mu);
        lose_held(q, cause ? cause : XP_CAUSE_DEATH, XP_RELAXED(&s->w->blame));
        spoil_by(q, s, op->at);
        pthread_mutex_unlock(&q->mu);
        note_released(s, op->point);
    }
    if (state != XP_PENDING)
        return 0;
    if (!device_may_wait(q, s, op->point, NULL)) { /* whoever looks after the device's waits knows of no other now */
        int64_t code = hold(q, s, op->point, XP_HOLD);
        *again = code == 0;
        return code;
    }
    int rc = xp_guard(s, op->point, q, op->at, false);
    *again = rc == 1;
    if (rc)
        return rc == 1 ? 0 : XP_CODE_SYSTEM | (rc == XP_TOO_FAR ? EOVERFLOW : rc < 0 ? ENOMEM : rc - 1);
    return word_operation(q, &q->calls->wait, op->address, op->point);
}

static int64_t held_signal(xp_queue *q, operation *op, bool *again)
{
    xp_slot *s = op->s;
    if (!xp_usable(s->d))
        return 0; /* this process has left, and lost what it owed */
    bool host = op->host || host_completes(q, op->point) || (XP_LOAD(&s->w->device) & XP_LATE);
    completion *c = host ? completion_new(s, op->point) : NULL;
    if (host && c == NULL)
        return XP_CODE_SYSTEM | ENOMEM;
    pthread_mutex_lock(&q->mu); /* a loss finds the point either here or in the list */
    bool pending = state_of(s, op->point) == XP_PENDING, lost = pending && op->lost;
    bool listed = pending && !lost && XP_LOAD(&q->waits) != 0, memory = !listed || make_room(q);
    if (listed && memory)
        add_record(q, s, op->point, op->at, c);
    op->handed = pending && !lost && memory;
    pthread_mutex_unlock(&q->mu);
    if (!op->handed) {
        completion_unref(c);
        if (!lost || xp_lose_from(s, op->point, op->lost, op->pid))
            return memory ? 0 : XP_CODE_SYSTEM | ENOMEM;
        int64_t code = hold(q, s, op->point - 1, XP_HOLD_RECORDED);
        *again = code == 0;
        return code;
    }
    int code = c ? launch(q, c) : word_operation(q, &q->calls->store, op->address, op->point);
    if (code == 0)
        note_handed(q, s, op->point);
    return code;
}

/* With q->order: carry out held operations as far as possible. Returns 0, or the code with which the first one left
 * failed. */
static int64_t advance(xp_queue *q)
{
    while (q->first) {
        operation *op = q->first;
        bool again = false;
        uint64_t done;
        int64_t code;
        if (op->kind == HELD_WAIT)
            code = held_wait(q, op, &again);
        else if (op->kind == HELD_SIGNAL)
            code = held_signal(q, op, &again);
        else
            code = invoke_all(op->calls, op->count, &done);
        if (code)
            return code == HOLDING ? 0 : code;
        if (!again)
            pop(q);
    }
    return 0;
}

/* With q->order: the first held operation failed. What is behind it is not carried out, and its points are lost in
 * their order. What the driver has may still complete, or Python knows better. */
static void fail(xp_queue *q, int64_t code)
{
    uint64_t me = (uint64_t)getpid();
    pthread_mutex_lock(&q->mu);
    operation *op = q->first, *next;
    bool lost = op->kind == HELD_SIGNAL && op->lost; /* for want of memory it cannot even be lost in its order */
    if (lost && xp_usable(op->s->d))
        xp_lose_late(op->s, 0, op->lost, op->pid);
    q->failed_at = q->failed ? q->failed_at : op->at;
    q->failed = q->failed ? q->failed : code;
    op->handed = false; /* a signal's store is not to come */
    q->first = NULL;
    q->last = &q->first;
    for (; op; op = next) {
        next = op->next;
        op->next = NULL;
        if (op->kind == HELD_SIGNAL && !lost) {
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

/* What a thread of ours has had of the driver's settings before is another queue's. */
static int64_t prepare(const xp_queue *q)
{
    uint64_t values[XP_ARG_KINDS] = {[XP_ARG_QUEUE] = q->handle};
    bool given;
    return perform(&q->calls->relay, values, &given);
}

/* With q->order. */
static int64_t go_on(xp_queue *q)
{
    int64_t code = q->first ? prepare(q) : 0;
    return code ? code : advance(q);
}

/* On the relay. */
static void resume(xp_job *job)
{
    xp_queue *q = (xp_queue *)job; /* its first member */
    int64_t code;
    pthread_mutex_lock(&q->order);
    while ((code = go_on(q)) != 0)
        fail(q, code);
    pthread_mutex_unlock(&q->order);
    xp_queue_unref(q);
}

void xp_queue_resume(xp_queue *q)
{
    q->job.run = resume;
    xp_relay_post(&q->job);
}

/* With q->order: the caller's operations are the first held ones. Returns their code, and then none of them is held. */
static int64_t begin(xp_queue *q)
{
    int64_t code = advance(q);
    while (code && q->first)
        pop(q);
    return code;
}

/* --- operations --------------------------------------------------------------------------------------------------- */

void xp_queue_lost(xp_queue *q, xp_slot *s)
{
    pthread_mutex_lock(&q->mu);
    spoil_by(q, s, ++q->at);
    pthread_mutex_unlock(&q->mu);
}

int xp_queue_wait(xp_queue *q, xp_slot *s, uint64_t address, uint64_t point, int64_t *code)
{
    int rc = 0;
    bool unsure = false;
    *code = 0;
    pthread_mutex_lock(&q->order);
    if (q->failed) {
        *code = q->failed;
    } else if (q->first == NULL && device_may_wait(q, s, point, &unsure)) {
        rc = xp_guard(s, point, q, next_at(q), unsure);
        if (rc && unsure)
            xp_queue_sure(q);
        if (rc == 0)
            *code = word_operation(q, &q->calls->wait, address, point);
    } else if (settled(s, point) == XP_PENDING || q->first) {
        operation *op = q->adopted ? NULL : operation_new(HELD_WAIT, s, address, point, 0);
        if (op) {
            bool alone = q->first == NULL;
            pthread_mutex_lock(&q->mu);
            append(q, op);
            pthread_mutex_unlock(&q->mu);
            *code = alone ? begin(q) : 0;
        } else if (q->adopted) {
            *code = XP_CODE_NOT_HELD;
        } else {
            rc = -1;
        }
    } else {
        rc = 1;
    }
    if (rc == 1 && settled(s, point) == XP_LOST) {
        xp_queue_lost(q, s);
        note_released(s, point);
    }
    pthread_mutex_unlock(&q->order);
    return rc;
}

/* With q->mu: what is signalled behind a loss must not heal it. */
static bool is_spent(const xp_queue *q)
{
    xp_view v;
    xp_read(q->own->w, &v);
    return q->losses != q->own_since || xp_state(&v, v.top) == XP_LOST;
}

/* With q->order. */
static void signal_now(xp_queue *q, xp_slot *s, uint64_t address, xp_signalled *done)
{
    bool host = false, limited = q->ordering != XP_ORDER_DEVICE && !q->adopted;
    bool holds = q->first != NULL || (limited && q->calls->budget == 0);
    completion *c = NULL;
    bool alone = q->first == NULL;
    pthread_mutex_lock(&q->mu); /* a loss finds every point of ours that is submitted in the list */
    uint32_t lost = q->lost_at > q->told ? q->lost : 0;
    bool listed = lost || XP_LOAD(&q->waits) != 0;
    done->memory = (!holds || have_spares(q)) && (!listed || make_room(q));
    if (s == q->own && (lost || is_spent(q)))
        done->wrong = "the queue's own timeline has met a loss";
    else if (done->memory)
        done->wrong = xp_submit(s, q->number, q->calls->store.count != 0, &done->point, &done->after, &host);
    uint64_t point = done->point;
    if (point) {
        holds = holds && (!alone || done->after);
        if (!host && (lost || host_completes(q, point))) {
            host = true;
            note_host(s, point);
        }
        if (holds) {
            if (done->after)
                append(q, take_spare(q, 0, HELD_WAIT, s, address, done->after));
            operation *op = take_spare(q, 1, HELD_SIGNAL, s, address, point);
            op->host = host;
            op->lost = lost;
            op->pid = q->lost_pid;
            append(q, op);
            done->after = 0; /* the queue sees to it */
        } else if (host && (c = completion_new(s, point)) == NULL) {
            xp_lose_late(s, 0, XP_CAUSE_QUEUE, (uint64_t)getpid());
            done->memory = false;
        } else {
            uint64_t at = ++q->at;
            if (c) {
                c->lost = lost;
                c->pid = q->lost_pid;
            }
            if (listed)
                add_record(q, s, point, at, c);
        }
    }
    pthread_mutex_unlock(&q->mu);
    if (point == 0 || !done->memory)
        return;
    if (holds) {
        done->code = alone ? begin(q) : 0;
    } else if (done->after) {
        completion_unref(c); /* `finish` looks for it in the list */
    } else {
        done->code = c ? launch(q, c) : word_operation(q, &q->calls->store, address, point);
        if (done->code == 0)
            note_handed(q, s, point);
    }
}

void xp_queue_signal(xp_queue *q, xp_slot *s, uint64_t address, xp_signalled *done)
{
    *done = (xp_signalled){.memory = true};
    pthread_mutex_lock(&q->order);
    done->code = q->failed ? q->failed : check(q);
    if (done->code == 0)
        signal_now(q, s, address, done);
    pthread_mutex_unlock(&q->order);
}

bool xp_queue_finish(xp_queue *q, xp_slot *s, uint64_t point, int64_t *code)
{
    completion *c = NULL;
    pthread_mutex_lock(&q->order);
    operation *op = q->first ? operation_new(HELD_SIGNAL, s, 0, point, 0) : NULL;
    pthread_mutex_lock(&q->mu);
    for (uint32_t i = q->record_count; i-- && c == NULL;) {
        record *r = record_at(q, i);
        if (r->s == s && r->point == point && (c = r->completion))
            __atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
    }
    if (op) {
        op->host = true;
        op->lost = c ? XP_LOAD(&c->lost) : 0;
        op->pid = c ? c->pid : 0;
        append(q, op);
    }
    pthread_mutex_unlock(&q->mu);
    if (q->first) {
        completion_unref(c);
        pthread_mutex_unlock(&q->order);
        *code = 0;
        return op != NULL;
    }
    if (c == NULL)
        c = completion_new(s, point);
    if (c)
        *code = launch(q, c);
    pthread_mutex_unlock(&q->order);
    return c != NULL;
}

/* With q->order. */
static bool submit(xp_queue *q, const xp_call *calls, uint32_t count, uint64_t *at, int64_t *code)
{
    *code = 0;
    operation *op = q->first ? operation_new(HELD_CALLS, NULL, 0, 0, count) : NULL;
    bool memory = op || q->first == NULL;
    if (op) {
        memcpy(op->calls, calls, count * sizeof *calls);
        pthread_mutex_lock(&q->mu);
        append(q, op);
        *at = op->at;
        pthread_mutex_unlock(&q->mu);
    } else if (memory) {
        uint64_t done;
        *at = next_at(q);
        *code = invoke_all(calls, count, &done);
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

enum { PIECEWISE_MOST = 64 }; /* bytes of a pattern that is written piece by piece */

typedef struct {
    const xp_queue *queue;
    xp_call *calls;
    uint32_t count, room;
} call_list;

static uint8_t bytes[256]; /* each has its own index */

__attribute__((constructor)) static void set_bytes(void)
{
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
}

/* False: the driver has no such call, or there is no memory. */
static bool add_call(call_list *list, const xp_recipe *recipe, uint64_t to, uint64_t from, uint64_t value, uint64_t number)
{
    if (recipe->count == 0)
        return false;
    if (list->count == list->room) {
        uint32_t room = list->room ? 2 * list->room : 16;
        xp_call *grown = room > list->room ? realloc(list->calls, room * sizeof *grown) : NULL;
        if (grown == NULL)
            return false;
        list->calls = grown;
        list->room = room;
    }
    const uint64_t values[XP_ARG_KINDS] = {
        [XP_ARG_QUEUE] = list->queue->handle, [XP_ARG_TO] = to, [XP_ARG_FROM] = from, [XP_ARG_NBYTES] = number,
        [XP_ARG_VALUE] = value, [XP_ARG_VALUE_AT] = (uintptr_t)&bytes[value & 0xff], [XP_ARG_TIMES] = number};
    list->calls[list->count++] = filled_in(&recipe->steps[0], values);
    return true;
}

static bool add_copy(call_list *list, uint64_t to, uint64_t from, uint64_t nbytes)
{
    return add_call(list, &list->queue->calls->copy, to, from, 0, nbytes);
}

/* `times` patterns whose size has a fill of its own. */
static bool add_fill(call_list *list, uint64_t to, const char *pattern, unsigned size, uint64_t times)
{
    uint64_t value = 0;
    memcpy(&value, pattern, size);
    return add_call(list, &list->queue->calls->fills[size / 2], to, 0, value, times);
}

static bool has_fill(const call_list *list, uint64_t size, uint64_t to)
{
    return (size == 1 || size == 2 || size == 4) && to % size == 0 && list->queue->calls->fills[size / 2].count;
}

/* As `fill_steps` of the package does it, but for patterns that it stages. */
static bool add_row(call_list *list, const xp_work *w, uint64_t to)
{
    const char *pattern = w->pattern;
    uint64_t size = w->pattern_size, unit = 4, part;
    if (size == 1 || memcmp(pattern, pattern + 1, size - 1) == 0)
        return add_fill(list, to, pattern, 1, w->width);
    if (has_fill(list, size, to))
        return add_fill(list, to, pattern, (unsigned)size, w->width / size);
    if (size > PIECEWISE_MOST)
        return false;
    while (unit > 1 && (size % unit || !has_fill(list, unit, to)))
        unit /= 2;
    bool good = true;
    for (uint64_t at = 0; good && at < size; at += unit)
        good = add_fill(list, to + at, pattern + at, (unsigned)unit, 1);
    for (uint64_t done = size; good && done < w->width; done += part) {
        part = done < w->width - done ? done : w->width - done;
        good = add_copy(list, to + done, to, part);
    }
    return good;
}

static bool add_work(call_list *list, const xp_work *w)
{
    bool good = true, whole = w->width == w->to_pitch && w->width == w->from_pitch;
    if (w->pattern && w->width % w->pattern_size)
        return false;
    if (!w->pattern && (whole || w->rows == 1))
        return w->width == 0 || add_copy(list, w->to, w->from, w->width * w->rows);
    for (uint64_t row = 0; good && w->width && row < w->rows; row++)
        good = w->pattern ? add_row(list, w, w->to + row * w->to_pitch)
                          : add_copy(list, w->to + row * w->to_pitch, w->from + row * w->from_pitch, w->width);
    return good;
}

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

/* With q->order: the driver has refused to store the point. Were it lost, those before it would be lost with it. */
static bool complete_by_host(xp_queue *q, xp_slot *s, uint64_t point)
{
    completion *c = completion_new(s, point);
    if (c == NULL)
        return false;
    note_host(s, point); /* what the device stores later must not come first */
    pthread_mutex_lock(&q->mu);
    for (uint32_t i = q->record_count; i--;) {
        record *r = record_at(q, i);
        if (r->s == s && r->point == point && r->completion == NULL) {
            r->completion = c;
            __atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
        }
    }
    pthread_mutex_unlock(&q->mu);
    return launch(q, c) == 0;
}

static bool met_a_loss(xp_queue *q)
{
    pthread_mutex_lock(&q->mu);
    bool met = q->lost_at > q->told || is_spent(q);
    pthread_mutex_unlock(&q->mu);
    return met;
}

/* With q->order. */
static bool work_now(xp_queue *q, const call_list *list, xp_signalled *done)
{
    uint64_t at;
    int64_t code = q->own && !xp_slot_wrong(q->own) && !q->failed && !met_a_loss(q) ? prepare(q) : -1;
    if (code || (list->count && !(submit(q, list->calls, list->count, &at, &code) && code == 0)))
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
    call_list list = {.queue = q};
    xp_signalled done = {.memory = true};
    bool good = !xp_queue_forked(q) && (work == NULL || add_work(&list, work));
    if (good) {
        pthread_mutex_lock(&q->order);
        good = work_now(q, &list, &done);
        *s = q->own;
        *point = done.point;
        if (good)
            xp_slot_ref(q->own);
        pthread_mutex_unlock(&q->order);
    }
    free(list.calls);
    return good;
}

bool xp_queue_after(xp_queue *q, xp_slot *s, uint64_t point)
{
    int64_t code;
    uint64_t address = XP_LOAD(&s->address);
    if (xp_queue_forked(q) || xp_slot_wrong(s) || address == 0)
        return false;
    if (state_of(s, point) == XP_DONE)
        return true;
    if (point > XP_LOAD(&s->handed) || prepare(q))
        return false;
    int rc = xp_queue_wait(q, s, address, point, &code);
    return (rc == 0 || rc == 1) && code == 0;
}
