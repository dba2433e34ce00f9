/* Handles, and what is answered without Python: references, the status of events and waits for them. A program that holds a
 * lock of its own in such a call cannot deadlock with a thread that has Python's lock and wants the program's. */
#include "adapter.h"

#include <pthread.h>
#include <sys/mman.h>

enum { COMMAND_EXECUTION_STATUS = 3, COMPLETE = 0, SUBMITTED = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* --- boxes -------------------------------------------------------------------------------------------------------- */

#define AT_A_TIME 4096

typedef struct chunk {
    struct chunk *next;
    unsigned used;
    xp_box boxes[AT_A_TIME];
} chunk;

static chunk *chunks;

static xp_box *spare; /* boxes that no program has seen; lock */

xp_box *xp_new_box(void)
{
    pthread_mutex_lock(&lock);
    if (spare) {
        xp_box *box = spare;
        spare = box->next;
        *box = (xp_box){.dispatch = xp_dispatch};
        pthread_mutex_unlock(&lock);
        return box;
    }
    if (!chunks || chunks->used == AT_A_TIME) {
        chunk *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) {
            pthread_mutex_unlock(&lock);
            return NULL;
        }
        made->next = chunks;
        chunks = made;
    }
    xp_box *box = &chunks->boxes[chunks->used++];
    box->dispatch = xp_dispatch;
    pthread_mutex_unlock(&lock);
    return box;
}

bool xp_is_box(const void *handle)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (chunk *each = chunks; each && !found; each = each->next)
        found = (uintptr_t)handle >= (uintptr_t)each->boxes && (uintptr_t)handle < (uintptr_t)(each->boxes + each->used);
    pthread_mutex_unlock(&lock);
    return found;
}

XP_EXPORT xp_box *xpushare_ur_box(void);
xp_box *xpushare_ur_box(void) { return xp_new_box(); }

XP_EXPORT bool xpushare_ur_is_box(const void *handle);
bool xpushare_ur_is_box(const void *handle) { return xp_is_box(handle); }

/* --- what the last reference leaves to Python --------------------------------------------------------------------- */

static pthread_cond_t some = PTHREAD_COND_INITIALIZER;
static xp_box *first, **last = &first;

xp_box *xp_take_ended(void)
{
    if (!__atomic_load_n(&first, __ATOMIC_ACQUIRE))
        return NULL;
    pthread_mutex_lock(&lock);
    xp_box *found = first;
    first = NULL;
    last = &first;
    pthread_mutex_unlock(&lock);
    return found;
}

static void *end_them(void *unused)
{
    do {
        pthread_mutex_lock(&lock);
        while (!first)
            pthread_cond_wait(&some, &lock);
        pthread_mutex_unlock(&lock);
    } while (xp_python_end_boxes());
    return unused;
}

static void end(xp_box *box)
{
    static bool running;
    pthread_t thread;
    bool has_object = !(box->done || box->point) || box->known;
    xp_box *queue = box->type == xp_event_kind ? box->queue : NULL;
    if (box->type == xp_queue_kind && box->lane)
        xp_close_lane(box->lane);
    if (box->type != xp_event_kind)
        xp_forget(box);
    if (box->point)
        xp_engine.let_go(box->event);
    if (has_object) {
        pthread_mutex_lock(&lock);
        box->next = NULL;
        *last = box;
        last = &box->next;
        if (!running && pthread_create(&thread, NULL, end_them, NULL) == 0) { /* else the next call of Python ends it */
            pthread_detach(thread);
            running = true;
        }
        pthread_cond_signal(&some);
        pthread_mutex_unlock(&lock);
    }
    if (queue)
        xp_let_go(queue);
    if (!has_object && box->unseen) {
        pthread_mutex_lock(&lock);
        box->next = spare;
        spare = box;
        pthread_mutex_unlock(&lock);
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

xp_engine_functions xp_engine;

XP_EXPORT void xpushare_ur_engine(const xp_engine_functions *functions);
void xpushare_ur_engine(const xp_engine_functions *functions) { xp_engine = *functions; }

bool xp_natives(void) { return xp_engine.state_at != NULL; }

bool xp_is(const xp_box *box, unsigned kind) { return box && __atomic_load_n(&box->kind, __ATOMIC_ACQUIRE) == kind; }

static bool is_owed(const xp_box *event) { return __atomic_load_n(&event->owed, __ATOMIC_ACQUIRE) != 0; }

int xp_state_of(const xp_box *event, uint64_t *point)
{
    *point = 0;
    if (event->done)
        return XP_DONE;
    if (!event->event)
        return -1;
    *point = event->point ? event->point : xp_engine.newest_point(event->event);
    return xp_engine.state_at(event->event, *point);
}

/* Of one that is not owed: whether all is well once it is pending no more. */
static bool wait_for(const xp_box *event)
{
    uint64_t point;
    int state = xp_state_of(event, &point);
    return state == XP_DONE || (state == XP_PENDING && xp_engine.wait_at(event->event, point) == XP_DONE);
}

bool xp_is_done(const xp_box *event)
{
    uint64_t point;
    return !is_owed(event) && xp_state_of(event, &point) == XP_DONE;
}

static int32_t references(int64_t count) { return (int32_t)(uint32_t)count; }

/* Add to what counts, if the program has a reference still. */
static bool add(xp_box *box, int64_t more)
{
    int64_t known = __atomic_load_n(&box->count, __ATOMIC_RELAXED);
    while (references(known) > 0) {
        if (!__atomic_compare_exchange_n(&box->count, &known, known + more, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        if (references(known + more) == 0)
            __atomic_store_n(&box->kind, 0, __ATOMIC_RELEASE);
        if (known + more == 0)
            end(box);
        return true;
    }
    return false;
}

bool xp_hold(xp_box *box) { return add(box, XP_HOLD); }

void xp_let_go(xp_box *box)
{
    if (__atomic_sub_fetch(&box->count, XP_HOLD, __ATOMIC_ACQ_REL) == 0)
        end(box);
}

static bool status(const xp_box *box, const uint64_t *words)
{
    uint32_t *value = (uint32_t *)words[3];
    size_t *written = (size_t *)words[4];
    uint64_t point;
    if (words[1] != COMMAND_EXECUTION_STATUS || !value || words[2] < sizeof *value)
        return false;
    int state = is_owed(box) ? XP_PENDING : xp_state_of(box, &point);
    if (state != XP_DONE && state != XP_PENDING)
        return false;
    *value = state == XP_DONE ? COMPLETE : SUBMITTED;
    if (written)
        *written = sizeof *value;
    return true;
}

/* Wait for those that it may wait for. What became of them is Python's to tell, unless all is well. */
static bool wait(unsigned kind, uint32_t count, xp_box *const *events)
{
    uint32_t done = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!xp_is(events[i], kind))
            return false;
    while (done < count && xp_is_done(events[done]))
        done++;
    if (done == count)
        return true;
    void *unlocked = xp_python_unlock();
    bool good = true;
    for (uint32_t i = done; good && i < count; i++)
        good = xp_has_been_made(events[i]) && wait_for(events[i]);
    xp_python_lock(unlocked);
    return good;
}

bool xp_natively(unsigned how, unsigned kind, const uint64_t *words)
{
    xp_box *box = (xp_box *)words[0];
    if (!xp_natives())
        return false;
    switch (how) {
    case XP_RETAINS:
        return xp_is(box, kind) && add(box, 1);
    case XP_RELEASES:
        return xp_is(box, kind) && add(box, -1);
    case XP_STATUS:
        return xp_is(box, kind) && status(box, words);
    case XP_WAITS:
        return words[0] && words[1] && wait(kind, (uint32_t)words[0], (xp_box *const *)words[1]);
    case XP_FINISHES:
        return xp_is(box, kind) && xp_finish(box);
    case XP_ASKS:
        return (kind > xp_counted_kinds || xp_is(box, kind)) && xp_property_of(box, kind, words);
    default:
        return false;
    }
}

/* Python's count of references changed by that much. */
XP_EXPORT void xpushare_ur_count(xp_box *box, int32_t more);
void xpushare_ur_count(xp_box *box, int32_t more)
{
    if (more > 0)
        __atomic_fetch_add(&box->count, more, __ATOMIC_ACQ_REL);
    for (; more < 0; more++)
        add(box, -1);
}

void xp_give_up(xp_box *event) { add(event, -1); }
