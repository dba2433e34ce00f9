/* A driver without hardware: in-order streams that run on threads, for tests of the layers above a driver. It has
 * two devices. Its functions return 0 or a code. Streams may share a hardware queue, in which a wait of one stream
 * delays the other. A test chooses the calls that fail or stall, and asks how many objects are alive. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK, INVALID, NOT_READY = 600, DEVICES = 2, NAMES = 64 };

typedef struct { int device, streams, paused; struct op *first, **last; } hardware; /* a hardware queue: a thread */
typedef struct { int unfinished, capturing; hardware *hw; } stream;

typedef struct { /* a mark that can be recorded again, like CUDA's events, or a marker with a callback, like OpenCL's */
    int refs, recorded, done;
    stream *stream; /* that recorded it last */
} event;

typedef struct op {
    struct op *next;
    stream *stream;
    enum { HOST, CALLBACK, STORE64, STORE32, WAIT64, WAIT32, COPY, FILL, MARK, END } kind; /* code, then memory */
    uint64_t at, value, more; /* more: a mask, a size, a function */
    event *event; int epoch; /* see ss_device_synchronize */
} op;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* protects all that follows, and all objects */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int streams, events, registrations, names, working, stopped;
static int epoch[DEVICES], unfinished[DEVICES][2]; /* operations of each device, of this epoch and of the one before */
static struct { char name[24]; int calls, at, code, stall; } books[NAMES]; /* the last two belong to call `at`; 0 for all calls */

static void lock(void) { pthread_mutex_lock(&mu); }
static int unlock(int result) { return pthread_cond_broadcast(&changed), pthread_mutex_unlock(&mu), result; }

static void go_on(void) { unlock(OK); }
static void begin(void) /* in a forked child, which has no threads */
{
    changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER, working = 0, memset(unfinished, 0, sizeof unfinished), go_on();
}
__attribute__((constructor)) static void set_up(void) { pthread_atfork(lock, go_on, begin); }

static int book(const char *name)
{
    int i;
    for (i = 0; i < names && strcmp(books[i].name, name) != 0; i++) {}
    if (i == names && names++ < NAMES)
        strncpy(books[i].name, name, sizeof books[i].name - 1);
    return i;
}

static int enter(const char *name) /* releases mu, whatever it returns */
{
    lock();
    int i = book(name);
    if (++books[i].calls != books[i].at && books[i].at)
        return OK;
    while (books[i].stall)
        pthread_cond_wait(&changed, &mu);
    return books[i].code;
}

/* The nth call of that name from now on (1: the next, 0: each) returns `code`. With `stall`, it does not return
 * before ss_go. */
void ss_rule(const char *name, int nth, int code, int stall)
{
    lock();
    int i = book(name);
    books[i].at = nth ? books[i].calls + nth : 0, books[i].code = code, books[i].stall = stall, unlock(OK);
}

void ss_go(const char *name) { lock(), books[book(name)].stall = 0, unlock(OK); }
void ss_forget(void) { lock(), memset(books, 0, sizeof books), names = 0, unlock(OK); } /* rules and calls */
int ss_calls(const char *name) { return lock(), unlock(books[book(name)].calls); }
int ss_streams(void) { return lock(), unlock(streams); }
int ss_events(void) { return lock(), unlock(events); }
int ss_registrations(void) { return lock(), unlock(registrations); }
void ss_pause(stream *s, int yes) { lock(), s->hw->paused = yes, unlock(OK); } /* all of its hardware queue */
void ss_capture(stream *s, int yes) { lock(), s->capturing = yes, unlock(OK); }

#define LOAD(type, at) __atomic_load_n((type *)(at), __ATOMIC_SEQ_CST)
#define STORE(type, at, value) __atomic_store_n((type *)(at), (type)(value), __ATOMIC_SEQ_CST)
static int rest(int *looks) { return usleep(++*looks < 200 ? 50 : 1000); } /* long waits use little CPU time */
static void carry_out(const op *o)
{
    int looks = 0;
    void *at = (void *)(uintptr_t)o->at, *value = (void *)(uintptr_t)o->value;
    switch (o->kind) {
    case STORE64: STORE(uint64_t, at, o->value); break;
    case STORE32: STORE(uint32_t, at, o->value); break;
    case WAIT64: while (!LOAD(int, &stopped) && (LOAD(uint64_t, at) & o->more) < o->value) rest(&looks); break;
    case WAIT32: while (!LOAD(int, &stopped) && LOAD(uint32_t, at) < (uint32_t)o->value) rest(&looks); break;
    case HOST: ((void (*)(void *))(uintptr_t)o->more)(value); break;
    case CALLBACK: ((void (*)(event *, int, void *))(uintptr_t)o->more)(o->event, (int)o->at, value); break;
    case COPY: memmove(at, value, o->more); break;
    case FILL: memset(at, (int)o->value, o->more); break;
    default: break;
    }
}

static void event_unref(event *e) { if (e && --e->refs == 0) free(e), events--; }

static void *run(void *argument)
{
    hardware *hw = argument;
    for (lock(); hw->streams;) {
        op *o = hw->paused || stopped ? NULL : hw->first;
        if (o == NULL && (pthread_cond_wait(&changed, &mu), 1))
            continue;
        hw->first = o->next;
        hw->last = o->next ? hw->last : &hw->first;
        working += o->kind > CALLBACK;
        unlock(OK);
        carry_out(o);
        lock();
        working -= o->kind > CALLBACK, o->stream->unfinished--, unfinished[hw->device][o->epoch]--;
        if (o->kind == MARK)
            o->event->done++;
        else if (o->kind == END)
            free(o->stream), streams--, hw->streams--;
        event_unref(o->event), free(o), pthread_cond_broadcast(&changed);
    }
    return free(hw), unlock(OK), NULL;
}

static int put(const char *name, op given)
{
    int code = enter(name);
    if (code)
        return unlock(code);
    op *o = memcpy(malloc(sizeof *o), &given, sizeof given);
    o->epoch = epoch[o->stream->hw->device], o->stream->unfinished++, unfinished[o->stream->hw->device][o->epoch]++;
    if (o->event)
        o->event->refs++;
    if (o->kind == MARK)
        o->event->stream = o->stream, o->event->recorded++;
    *o->stream->hw->last = o;
    o->stream->hw->last = &o->next;
    return unlock(OK);
}

int ss_stream_create(int device, stream *beside, stream **made) /* on the hardware queue of `beside`, or NULL */
{
    int code = enter("stream_create");
    if (code || device < 0 || device >= DEVICES || (beside && beside->hw->device != device))
        return unlock(code ? code : INVALID);
    pthread_t thread;
    stream *s = *made = malloc(sizeof *s);
    *s = (stream){0, 0, beside ? beside->hw : calloc(1, sizeof *s->hw)};
    s->hw->device = device, s->hw->last = beside ? s->hw->last : &s->hw->first;
    s->hw->streams++, streams++;
    if (beside == NULL && pthread_create(&thread, NULL, run, s->hw) == 0)
        pthread_detach(thread);
    return unlock(OK);
}

#define PUT(name, what, ...) { return put(name, (op){.stream = s, .kind = what, __VA_ARGS__}); }
int ss_stream_destroy(stream *s) PUT("stream_destroy", END) /* when its work has finished */
int ss_store64(stream *s, uint64_t at, uint64_t v) PUT("store64", STORE64, .at = at, .value = v)
int ss_store32(stream *s, uint64_t at, uint32_t v) PUT("store32", STORE32, .at = at, .value = v)
int ss_wait64_geq(stream *s, uint64_t at, uint64_t v) PUT("wait64_geq", WAIT64, .at = at, .value = v, .more = ~0ull)
int ss_wait_masked(stream *s, uint64_t at, uint64_t v, unsigned flags, uint64_t mask) /* HIP's; flags 0 */
    PUT(flags ? "flags" : "wait_masked", WAIT64, .at = at, .value = v, .more = mask)
int ss_wait32_geq(stream *s, uint64_t at, uint32_t v) PUT("wait32_geq", WAIT32, .at = at, .value = v)
int ss_host(stream *s, uint64_t f, uint64_t data) PUT("host", HOST, .value = data, .more = f)
int ss_copy(stream *s, uint64_t to, uint64_t from, uint64_t n) PUT("copy", COPY, .at = to, .value = from, .more = n)
int ss_fill(stream *s, uint64_t to, int v, uint64_t n) PUT("fill", FILL, .at = to, .value = (uint64_t)v, .more = n)
int ss_mark_record(event *e, stream *s) PUT("mark_record", MARK, .event = e)

#define ASK(name, answer) { int code = enter(name); return unlock(code ? code : (answer)); }
int ss_flush(stream *s) ASK("flush", ((void)s, OK))
int ss_stream_query(stream *s) ASK("stream_query", s->unfinished ? NOT_READY : OK)
int ss_captured(stream *s, int *status) ASK("captured", (*status = s->capturing, OK))
int ss_mark_create(event **made) ASK("mark_create", (*made = calloc(1, sizeof **made), (*made)->refs = 1, events++, OK))
int ss_mark_destroy(event *e) ASK("mark_destroy", (event_unref(e), OK))
int ss_mark_query(event *e) ASK("mark_query", e->recorded == e->done ? OK : NOT_READY) /* never recorded: complete */
int ss_register(uint64_t at) ASK("register", ((void)at, registrations++, OK)) /* pages of the host, for all devices */
int ss_unregister(uint64_t at) ASK("unregister", ((void)at, registrations--, OK))
int ss_device_check(int device) ASK("device_check", ((void)device, OK)) /* the code that a broken device returns */

int ss_device_synchronize(int device) /* once everything queued before has finished, whatever comes after it */
{
    int code = enter("device_synchronize");
    for (int begun = 0; !code && begun < 2; begun++) {
        for (; unfinished[device][!epoch[device]]; pthread_cond_wait(&changed, &mu)) {}
        epoch[device] ^= !begun;
    }
    return unlock(code);
}

void ss_exit(void) /* nothing runs any more, and nothing uses memory of the process */
{
    for (lock(), STORE(int, &stopped, 1); working; pthread_cond_wait(&changed, &mu)) {}
    unlock(OK);
}

/* OpenCL's: make and record a mark; f(event, status, data) is called after it, with the status that the rule of
 * "status" sets. */
int ss_marker(stream *s, event **made) { return ss_mark_create(made) ? INVALID : ss_mark_record(*made, s); }
int ss_callback(event *e, uint64_t f, uint64_t data)
{
    return put("callback", (op){NULL, e->stream, CALLBACK, (uint64_t)unlock(enter("status")), data, f, e, 0});
}
