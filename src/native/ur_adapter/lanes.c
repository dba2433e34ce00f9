/* Commands that are enqueued without Python. Each queue has a lane. A command goes into the lane at once, with an
 * event whose handle the program has from then on. A thread of the lane takes the commands out, in order. So no
 * thread that enqueues waits for Python's lock. A command whose arguments a rule might refuse never comes here:
 * Python answers it.
 *
 * The thread itself carries out what a queue of the host can do at once, as long as the queue's other half in Python
 * has no work and nothing to report (`by_python` is 0). It passes a command to a device through the package's
 * engine, if the device reaches the memory, and waits for nothing or for commands of its own queues. It gives
 * anything else to Python, which enqueues it: commands that wait for events of others, commands with profiling
 * times, and commands that the driver has refused, so that Python reports the error. */
#include "parts.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_WAITS = 1024, MOST_PATTERN = 4096, LITTLE = 16384 /* bytes */ };
#define NEWEST UINT64_MAX /* the point of an event that Python had not made when another command began to wait for it */

typedef struct later { /* a call about a command's event */
    struct later *next;
    xp_answers answer;
    unsigned function, count;
    uint64_t words[XP_MOST_WORDS]; /* the event is the first */
} later;

typedef struct command {
    struct command *next;
    later *first_later, **last_later;
    const xp_command_form *form;
    xp_box *queue, *event; /* `event` or NULL: what it makes */
    void *made;            /* where Python writes the event's handle */
    uint64_t queued;       /* when, in nanoseconds */
    uint64_t serial;
    unsigned function, count, waits;
    uint64_t words[XP_MOST_WORDS];
    uint64_t *points; /* those of `events` that it waits for */
    xp_box **events;
} command; /* then the data that `words` point to */

struct xp_lane {
    xp_lane *next;
    command *first, **last;
    command *running;      /* taken out, and not done */
    uint64_t posted, done; /* commands; done: carried out, or given to Python */
    uint64_t oldest;       /* the serial number of the first that is not done, if there is one */
    bool runs, sleeps, closed;
    pthread_cond_t some;
    void *device_queue; /* the engine's queue, for a queue of a device; otherwise NULL */
    uint32_t device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress;
static unsigned waiting; /* for progress */
static uint64_t newest;  /* the serial number of the last command */
static xp_lane *lanes;

/* --- waiting for lanes -------------------------------------------------------------------------------------------- */

/* With the lock. */
static void wait_for_progress(void)
{
    waiting++;
    pthread_cond_wait(&progress, &lock);
    waiting--;
}

bool xp_has_been_made(const xp_box *event)
{
    if (!xp_is_owed(event))
        return true;
    pthread_mutex_lock(&lock);
    while (xp_is_owed(event) && !xp_python_over())
        wait_for_progress();
    pthread_mutex_unlock(&lock);
    return !xp_is_owed(event);
}

/* Called with the lock. Return whether all commands have left their lanes. */
static bool all_done(void)
{
    for (const xp_lane *each = lanes; each; each = each->next)
        if (each->done < each->posted)
            return false;
    return true;
}

static xp_box *queue_of(const xp_order *order, const uint64_t *words)
{
    xp_box *queue = order->queue && xp_natives() ? (xp_box *)words[order->queue - 1] : NULL;
    return xp_is(queue, XP_QUEUE_KIND) ? queue : NULL;
}

/* Called with the lock. Return the first command of a lane that is not done, or NULL. */
static const command *pending(const xp_lane *lane) { return lane->running ? lane->running : lane->first; }

static const command *after(const xp_lane *lane, const command *c) { return c == lane->running ? lane->first : c->next; }

typedef struct {
    uint64_t begin, end;
} span;

static bool uses(const command *c, const span *memory)
{
    const uint64_t *a = c->words;
    for (size_t i = 0; i < sizeof c->form->uses / sizeof *c->form->uses && c->form->uses[i].at; i++) {
        uint64_t nbytes = a[c->form->uses[i].nbytes] * (c->form->uses[i].times ? a[c->form->uses[i].times] : 1);
        if (!xp_apart(a[c->form->uses[i].at], nbytes, memory->begin, memory->end - memory->begin))
            return true;
    }
    return false;
}

/* Called with the lock. Return whether a command that is not done, up to that one, uses the memory. */
static bool is_used(const span *memory, uint64_t serial)
{
    for (const xp_lane *each = lanes; each; each = each->next)
        for (const command *c = pending(each); c && c->serial <= serial; c = after(each, c))
            if (uses(c, memory))
                return true;
    return false;
}

static const void *device_of(const xp_box *queue)
{
    void *device = NULL;
    xp_property_of(queue, XP_QUEUE_KIND, (uint64_t[]){0, XP_QUEUE_DEVICE, sizeof device, (uintptr_t)&device, 0});
    return device;
}

/* Called with the lock. The same for a command of the device's queues. */
static bool is_busy(const void *device, uint64_t serial)
{
    for (const xp_lane *each = lanes; each; each = each->next) {
        const command *c = pending(each);
        const void *of = c ? device_of(c->queue) : NULL;
        if (c && c->serial <= serial && (of == device || !of)) /* without memory for the property, it may be any */
            return true;
    }
    return false;
}

bool xp_queue_is_busy(const xp_box *queue)
{
    pthread_mutex_lock(&lock);
    bool busy = queue->lane && queue->lane->done < queue->lane->posted;
    pthread_mutex_unlock(&lock);
    return busy;
}

enum { COMMAND_QUEUE = 0, CONTEXT = 1, COMMAND_TYPE = 2, REFERENCE_COUNT = 4 };

bool xp_event_property(const xp_box *event, uint32_t type, const uint64_t *words)
{
    uint32_t references = (uint32_t)event->count;
    pthread_mutex_lock(&lock);
    const xp_box *queue = xp_is_owed(event) ? event->queue : NULL;
    bool good = queue != NULL;
    if (good && words[1] == COMMAND_QUEUE)
        good = xp_give(words, &queue, sizeof queue);
    else if (good && words[1] == COMMAND_TYPE)
        good = xp_give(words, &type, sizeof type);
    else if (good && words[1] == REFERENCE_COUNT)
        good = xp_give(words, &references, sizeof references);
    else
        good = good && words[1] == CONTEXT &&
               xp_property_of(queue, XP_QUEUE_KIND, (uint64_t[]){0, XP_QUEUE_CONTEXT, words[2], words[3], words[4]});
    pthread_mutex_unlock(&lock);
    return good;
}

bool xp_answer_later(xp_answers answer, unsigned function, const uint64_t *words, unsigned count)
{
    xp_box *event = (xp_box *)words[0];
    later *made = calloc(1, sizeof *made);
    bool good = false;
    if (!made)
        return false;
    made->answer = answer;
    made->function = function;
    made->count = count;
    memcpy(made->words, words, count * sizeof *words);
    pthread_mutex_lock(&lock);
    for (const xp_lane *each = xp_is_owed(event) ? lanes : NULL; each && !good; each = each->next)
        for (command *c = (command *)pending(each); c && !good; c = (command *)after(each, c))
            if (c->event == event && xp_count(event, 1)) {
                good = true;
                *c->last_later = made;
                c->last_later = &made->next;
            }
    pthread_mutex_unlock(&lock);
    if (!good)
        free(made);
    return good;
}

/* Called with the lock. Return whether a call has to wait for lanes, up to a command. `memory`: what it takes away. */
static bool is_late(const xp_order *order, const uint64_t *words, const xp_box *queue, const span *memory,
                    uint64_t serial)
{
    const xp_box *event = order->event ? (xp_box *)words[order->event - 1] : NULL;
    xp_box *const *given = order->given ? (xp_box **)words[order->given - 1] : NULL;
    xp_box *const *events = order->events ? (xp_box **)words[order->events] : NULL;
    uint32_t count = events ? (uint32_t)words[order->events - 1] : 0;
    bool late = (queue && queue->lane && queue->lane->done < queue->lane->posted && queue->lane->oldest <= serial) ||
                (xp_is(event, XP_EVENT_KIND) && xp_is_owed(event)) || (order->memory && is_used(memory, serial)) ||
                (order->device && is_busy((void *)words[order->device - 1], serial)) ||
                (given && xp_is_box(*given) && xp_is_owed(*given));
    for (uint32_t i = 0; i < count && !late; i++)
        late = xp_is(events[i], XP_EVENT_KIND) && xp_is_owed(events[i]);
    return late;
}

void xp_catch_up(const xp_order *order, const uint64_t *words)
{
    if (!xp_natives())
        return;
    void *unlocked = NULL;
    xp_box *queue = queue_of(order, words);
    span memory = {0};
    if (order->memory)
        xp_range_of(words[order->memory - 1], &memory.begin, &memory.end);
    pthread_mutex_lock(&lock);
    uint64_t serial = newest;
    if (queue) { /* the commands in its lane go to Python, and so do later ones */
        queue->callers++;
        queue->by_python = 1;
    }
    if (is_late(order, words, queue, &memory, serial)) {
        pthread_mutex_unlock(&lock);
        unlocked = xp_python_unlock();
        pthread_mutex_lock(&lock);
        while (is_late(order, words, queue, &memory, serial) && !xp_python_over())
            wait_for_progress();
    }
    pthread_mutex_unlock(&lock);
    xp_python_lock(unlocked);
}

static bool is_of_device(const xp_box *queue)
{
    pthread_mutex_lock(&lock);
    bool of_device = queue->lane && queue->lane->device_queue;
    pthread_mutex_unlock(&lock);
    return of_device;
}

void xp_caught_up(const xp_order *order, const uint64_t *words)
{
    xp_box *queue = queue_of(order, words);
    if (!queue)
        return;
    bool clean = false;
    int held = is_of_device(queue) && !xp_python_enter() ? xp_python_hold() : -1; /* the thread that makes it unclean has Python's lock */
    if (held >= 0)
        clean = xp_python_is_clean(queue);
    pthread_mutex_lock(&lock);
    queue->callers--;
    if (clean && !queue->callers)
        queue->by_python = 0;
    pthread_mutex_unlock(&lock);
    if (held >= 0) {
        xp_python_let_go(held);
        xp_python_exit();
    }
}

static bool is_by_python(const xp_box *queue)
{
    pthread_mutex_lock(&lock);
    bool by_python = queue->by_python;
    pthread_mutex_unlock(&lock);
    return by_python;
}

bool xp_finish(const xp_box *queue, bool (*of_device)(const xp_box *queue))
{
    if (is_of_device(queue))
        return !is_by_python(queue) && of_device(queue) && !is_by_python(queue);
    if (!(queue->traits & XP_HOST_TRAIT))
        return false;
    void *unlocked = NULL;
    pthread_mutex_lock(&lock);
    const xp_lane *lane = queue->lane;
    if (!queue->by_python && lane && lane->done < lane->posted) {
        pthread_mutex_unlock(&lock);
        unlocked = xp_python_unlock();
        pthread_mutex_lock(&lock);
        for (uint64_t upto = lane->posted; lane->done < upto && !xp_python_over();)
            wait_for_progress();
    }
    bool finished = !queue->by_python && !xp_python_over();
    pthread_mutex_unlock(&lock);
    xp_python_lock(unlocked);
    return finished;
}

void xp_flush(double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    waiting++;
    while (!all_done() && pthread_cond_timedwait(&progress, &lock, &until) != ETIMEDOUT)
        ;
    waiting--;
    pthread_mutex_unlock(&lock);
}

static void wake_lanes(void)
{
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&progress);
    pthread_mutex_unlock(&lock);
}

/* Python ends: give it all enqueued commands, then wait for the calls that have begun, and begin no more. Called
 * without the GIL. */
XP_EXPORT void xpushare_ur_end(void)
{
    if (xp_python_over()) /* a forked child: its lanes have no threads, and their lock may be held for ever */
        return;
    xp_flush(xp_linger());
    xp_python_finish(wake_lanes);
}

/* --- a lane's thread ---------------------------------------------------------------------------------------------- */

/* The next command, or NULL if none will come. */
static command *take(xp_lane *lane)
{
    pthread_mutex_lock(&lock);
    while (!lane->first && !lane->closed) {
        lane->sleeps = true;
        pthread_cond_wait(&lane->some, &lock);
    }
    lane->sleeps = false;
    command *found = lane->running = lane->first;
    if (found) {
        lane->first = found->next;
        if (!lane->first)
            lane->last = &lane->first;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void drop(command *c)
{
    for (unsigned i = 0; i < c->waits; i++)
        xp_let_go(c->events[i]);
    if (c->event)
        xp_let_go(c->event);
    if (c->queue)
        xp_let_go(c->queue);
    free(c);
}

static void settle(xp_lane *lane, command *c)
{
    xp_box *unheld = NULL;
    pthread_mutex_lock(&lock);
    if (c->event) {
        if (!c->event->done && !c->event->point) { /* Python's object has it */
            unheld = c->event->queue;
            c->event->queue = NULL;
        }
        __atomic_store_n(&c->event->owed, 0, __ATOMIC_RELEASE);
    }
    lane->done++;
    lane->running = NULL;
    if (lane->first)
        lane->oldest = lane->first->serial;
    if (waiting)
        pthread_cond_broadcast(&progress);
    pthread_mutex_unlock(&lock);
    if (unheld)
        xp_let_go(unheld);
    for (later *each = c->first_later, *next; each; each = next) {
        next = each->next;
        each->answer(each->function, each->words, each->count);
        xp_count((xp_box *)each->words[0], -1);
        free(each);
    }
    drop(c);
}

/* Give the command to Python: (function, event, when, how many points, the points, the arguments). */
static void carry(const command *c)
{
    uint64_t numbers[4 + MOST_WAITS + XP_MOST_WORDS] = {c->function, (uintptr_t)c->event, c->queued, c->waits};
    memcpy(numbers + 4, c->points, c->waits * sizeof *numbers);
    memcpy(numbers + 4 + c->waits, c->words, c->count * sizeof *numbers);
    xp_python_carry(numbers, 4 + c->waits + c->count);
}

static void copy(const xp_command_form *form, const uint64_t *a, uint64_t rows)
{
    for (uint64_t row = 0; row < rows; row++)
        memmove((char *)a[form->to] + row * a[form->to_pitch], (char *)a[form->from] + row * a[form->from_pitch],
                a[form->width]);
}

/* The pattern continues from row to row. */
static void fill(const xp_command_form *form, const uint64_t *a, uint64_t rows)
{
    const char *pattern = (char *)a[form->pattern];
    char turned[MOST_PATTERN];
    size_t size = a[form->pattern - 1];
    for (uint64_t row = 0; row < rows; row++) {
        size_t begin = row * a[form->width] % size;
        memcpy(turned, pattern + begin, size - begin);
        memcpy(turned + size - begin, pattern, begin);
        xp_engine.fill((char *)a[form->to] + row * a[form->to_pitch], turned, size, a[form->width]);
    }
}

static uint64_t rows_of(const xp_command_form *form, const uint64_t *a) { return form->rows ? a[form->rows] : 1; }

static void carry_out(const xp_command_form *form, const uint64_t *a)
{
    if (form->does == XP_COPIES)
        copy(form, a, rows_of(form, a));
    else if (form->does == XP_FILLS)
        fill(form, a, rows_of(form, a));
}

/* Return whether it can be carried out here and now, if Python does nothing with the queue. */
static bool is_ready(const xp_command_form *form, const xp_box *queue, xp_box *const *events, unsigned waits)
{
    bool ready = (queue->traits & XP_HOST_TRAIT) && !form->needs;
    for (unsigned i = 0; ready && i < waits; i++)
        ready = xp_is_done(events[i]);
    return ready;
}

/* Returns false if the command goes to Python, as do those after it. */
static bool is_ours(const command *c, bool ready)
{
    pthread_mutex_lock(&lock);
    if (!ready)
        c->queue->by_python = 1;
    bool ours = !c->queue->by_python;
    pthread_mutex_unlock(&lock);
    return ours;
}

/* Attached. Return whether Python has nothing more to do with the queue. */
static bool is_ours_again(const command *c)
{
    if (!xp_python_is_clean(c->queue))
        return false;
    pthread_mutex_lock(&lock);
    bool ours = !c->queue->callers; /* otherwise another thread enqueues in Python, and waits for this lane */
    if (ours)
        c->queue->by_python = 0;
    pthread_mutex_unlock(&lock);
    return ours;
}

/* Return whether a device can do that to memory directly. */
static bool is_here(const xp_lane *lane, const xp_command_form *form, const uint64_t *a)
{
    bool good = true;
    if (form->does == XP_FILLS) /* a device fills its own memory only */
        good = xp_lies(lane->device, a[form->to]) == XP_HERE;
    else if (form->does == XP_COPIES)
        good = xp_lies(lane->device, a[form->to]) != XP_ELSEWHERE && xp_lies(lane->device, a[form->from]) != XP_ELSEWHERE;
    return good;
}

/* Have the device wait for the commands that a command waits for. Returns false if it is not certain that these
 * waits end. */
static bool comes_after(const xp_lane *lane, const command *c)
{
    for (unsigned i = 0; i < c->waits; i++) {
        const xp_box *each = c->events[i];
        uint64_t point;
        int state = xp_state_of(each, &point);
        if (state == XP_DONE || (state == XP_PENDING && each->point && each->queue == c->queue))
            continue;
        if (state != XP_PENDING || !each->point || each->queue->lane->device != lane->device ||
            !xp_engine.after(lane->device_queue, each->event, point))
            return false;
    }
    return true;
}

/* Returns false if the command goes to Python, even if a part of it was done. */
static bool hand_over(const xp_lane *lane, const command *c)
{
    const xp_command_form *form = c->form;
    const uint64_t *a = c->words;
    if (!lane->device_queue || form->needs || !is_here(lane, form, a) || xp_python_enter())
        return false;
    xp_work work = {.to = a[form->to], .from = a[form->from], .to_pitch = a[form->to_pitch],
                    .from_pitch = a[form->from_pitch], .width = a[form->width], .rows = rows_of(form, a)};
    if (form->does == XP_FILLS) {
        work.pattern = (char *)a[form->pattern];
        work.pattern_size = a[form->pattern - 1];
    }
    void *event;
    uint64_t point;
    bool good = comes_after(lane, c) &&
                xp_engine.work(lane->device_queue, form->does == XP_NOTHING ? NULL : &work, &event, &point);
    xp_python_exit();
    if (good && c->event) {
        c->event->event = event;
        c->event->point = point;
    } else if (good) {
        xp_engine.let_go(event);
    }
    return good;
}

static void *run(void *of)
{
    xp_lane *lane = of;
    xp_python_thread thread = {0};
    for (command *c; (c = take(lane)); settle(lane, c)) {
        bool made = true; /* events of other lanes */
        for (unsigned i = 0; made && i < c->waits; i++)
            made = xp_has_been_made(c->events[i]);
        if (made && hand_over(lane, c))
            continue;
        bool ready = made && is_ready(c->form, c->queue, c->events, c->waits), ours = made && is_ours(c, ready);
        if (made && !ours && xp_python_attach(&thread)) {
            ours = ready && is_ours_again(c);
            if (!ours)
                carry(c);
            if (lane->device_queue)
                is_ours_again(c);
            xp_python_detach(&thread);
        }
        if (ours)
            carry_out(c->form, c->words);
        if (ours && c->event)
            c->event->done = 1;
    }
    xp_python_leave(&thread);
    pthread_mutex_lock(&lock);
    xp_lane **at = &lanes;
    while (*at != lane)
        at = &(*at)->next;
    *at = lane->next;
    pthread_mutex_unlock(&lock);
    free(lane);
    return NULL;
}

static xp_lane *lane_new(void *device_queue, uint32_t device)
{
    xp_lane *made = calloc(1, sizeof *made);
    if (made) {
        made->device_queue = device_queue;
        made->device = device;
        made->last = &made->first;
        pthread_cond_init(&made->some, NULL);
    }
    return made;
}

/* Make the lane of a device's queue, whose handle nobody has yet. Without memory, Python takes all its commands. */
XP_EXPORT void xpushare_ur_device_queue(xp_box *queue, void *engine, uint32_t device)
{
    queue->lane = lane_new(engine, device);
}

/* Called with the lock. Return the queue's running lane, or NULL if there can be none. */
static xp_lane *lane_of(xp_box *queue)
{
    pthread_t thread;
    xp_lane *lane = queue->lane ? queue->lane : lane_new(NULL, 0);
    queue->lane = lane;
    if (!lane || lane->runs)
        return lane;
    if (pthread_create(&thread, NULL, run, lane))
        return NULL;
    pthread_setname_np(thread, "xpushare-lane");
    pthread_detach(thread);
    lane->runs = true;
    lane->next = lanes;
    return lanes = lane;
}

static void close_lane(xp_lane *lane)
{
    pthread_mutex_lock(&lock);
    lane->closed = true;
    pthread_cond_signal(&lane->some);
    if (!lane->runs)
        free(lane);
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_condattr_t monotonic;
    xp_close_lane = close_lane;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&progress, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* --- enqueueing --------------------------------------------------------------------------------------------------- */

static command *command_new(const xp_command_form *form, const uint64_t *words, unsigned count, uint32_t waits)
{
    const void *pattern = form->pattern ? (void *)words[form->pattern] : NULL;
    size_t size = pattern ? words[form->pattern - 1] : 0, list = waits * sizeof(uint64_t);
    command *c = calloc(1, sizeof *c + 2 * list + size);
    if (!c)
        return NULL;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    c->queued = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    c->form = form;
    c->last_later = &c->first_later;
    c->points = (uint64_t *)(c + 1);
    c->events = (xp_box **)(c->points + waits);
    c->count = count;
    memcpy(c->words, words, count * sizeof *words);
    if (waits)
        c->words[form->waits + 1] = (uintptr_t)c->events;
    if (pattern)
        c->words[form->pattern] = (uintptr_t)memcpy(c->events + waits, pattern, size);
    if (form->blocking)
        c->words[form->blocking] = false;
    c->words[form->event] = 0;
    return c;
}

/* Hold the objects that it needs, and record for which point of each event it waits. Returns false if it is
 * uncertain whether all is well. */
static bool hold(command *c, xp_box *queue, xp_box *const *events, unsigned waits)
{
    if (!xp_hold(queue))
        return false;
    c->queue = queue;
    for (; c->waits < waits; c->waits++) {
        xp_box *event = events[c->waits];
        uint64_t *point = &c->points[c->waits];
        if (!xp_hold(event))
            return false;
        c->events[c->waits] = event;
        *point = NEWEST;
        int state = xp_is_owed(event) ? XP_PENDING : xp_state_of(event, point);
        if (state != XP_DONE && state != XP_PENDING) {
            xp_let_go(event);
            return false;
        }
    }
    return true;
}

static xp_box *event_of(xp_box *queue, unsigned function)
{
    xp_box *event = xp_new_box();
    if (!event || !xp_hold(queue))
        return NULL;
    event->type = (uint8_t)XP_EVENT_KIND;
    event->queue = queue;
    event->function = (uint16_t)function;
    event->count = 1;
    event->owed = 1;
    __atomic_store_n(&event->kind, event->type, __ATOMIC_RELEASE);
    return event;
}

/* Carry out small commands with no command before them, so that no thread has to be woken. */
static bool at_once(const xp_command_form *form, const uint64_t *a, const xp_box *queue)
{
    uint64_t rows = rows_of(form, a);
    if (form->does && (rows > LITTLE || a[form->width] > LITTLE / rows))
        return false;
    pthread_mutex_lock(&lock);
    bool now = !queue->by_python && (!queue->lane || queue->lane->done == queue->lane->posted);
    if (now)
        carry_out(form, a);
    pthread_mutex_unlock(&lock);
    return now;
}

/* Put the command into the lane. Returns false if nothing was done. */
static bool post(unsigned function, const xp_command_form *form, const uint64_t *words, unsigned count, xp_box *event)
{
    uint32_t waits = form->waits ? (uint32_t)words[form->waits] : 0;
    xp_box *queue = (xp_box *)words[0];
    command *c = command_new(form, words, count, waits);
    if (!c)
        return false;
    c->function = function;
    if (event && xp_hold(event)) {
        c->event = event;
        c->words[form->event] = (uintptr_t)&c->made;
    }
    xp_lane *lane = NULL;
    if (hold(c, queue, waits ? (xp_box **)words[form->waits + 1] : NULL, waits)) {
        pthread_mutex_lock(&lock);
        lane = lane_of(queue);
        if (lane) {
            c->serial = ++newest;
            if (lane->done == lane->posted++)
                lane->oldest = c->serial;
            *lane->last = c;
            lane->last = &c->next;
            if (lane->sleeps)
                pthread_cond_signal(&lane->some);
        }
        pthread_mutex_unlock(&lock);
    }
    if (!lane)
        drop(c);
    return lane != NULL;
}

bool xp_enqueue(unsigned function, const xp_command_form *form, const uint64_t *words, unsigned count, xp_box **made)
{
    xp_box *queue = (xp_box *)words[0], *event = NULL;
    if (!form->plain || !xp_natives() || !xp_is(queue, XP_QUEUE_KIND) || (form->needs & ~queue->traits))
        return false;
    uint32_t waits = form->waits ? (uint32_t)words[form->waits] : 0;
    xp_box *const *events = form->waits ? (xp_box **)words[form->waits + 1] : NULL;
    xp_box **out = (xp_box **)words[form->event];
    bool blocking = form->blocking && words[form->blocking];
    if ((waits != 0) != (events != NULL) || waits > MOST_WAITS || (form->given && out && xp_is_box(*out)) ||
        (form->pattern && words[form->pattern - 1] > MOST_PATTERN) || !form->plain(words, queue->backend))
        return false;
    for (uint32_t i = 0; i < waits; i++)
        if (!xp_is(events[i], XP_EVENT_KIND))
            return false;
    if ((out || blocking) && !(event = event_of(queue, function)))
        return false;
    if (is_ready(form, queue, events, waits) && at_once(form, words, queue)) {
        if (event) {
            event->done = 1;
            event->owed = 0;
        }
    } else if (!post(function, form, words, count, event)) {
        if (event) /* nobody has its handle */
            xp_let_go(event->queue);
        return false;
    }
    *made = event;
    return true;
}
