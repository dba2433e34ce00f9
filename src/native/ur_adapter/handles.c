/* Handles: the boxes that they point to, their references, and the state of events. */
#include "parts.h"

#include <pthread.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define AT_A_TIME 4096

typedef struct chunk {
    struct chunk *next;
    unsigned used;
    xp_box boxes[AT_A_TIME];
} chunk;

static chunk *chunks;

static xp_box *spare; /* boxes that no program has seen; protected by the lock */

xp_slot xp_dispatch[XP_MOST_SLOTS];
void (*xp_close_lane)(xp_lane *lane);

/* With the lock. */
static bool have_room(void)
{
    if (chunks && chunks->used < AT_A_TIME)
        return true;
    chunk *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return false;
    made->next = chunks;
    chunks = made;
    return true;
}

xp_box *xp_new_box(void)
{
    pthread_mutex_lock(&lock);
    xp_box *box = spare;
    if (box)
        spare = box->next;
    else if (have_room())
        box = &chunks->boxes[chunks->used++];
    if (box)
        *box = (xp_box){.dispatch = xp_dispatch};
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

XP_EXPORT xp_box *xpushare_ur_box(void) { return xp_new_box(); }

XP_EXPORT bool xpushare_ur_is_box(const void *handle) { return xp_is_box(handle); }

/* --- references --------------------------------------------------------------------------------------------------- */

static void end(xp_box *box)
{
    bool has_object = !(box->done || box->point) || box->known;
    xp_box *queue = box->type == XP_EVENT_KIND ? box->queue : NULL;
    if (box->type == XP_QUEUE_KIND && box->lane)
        xp_close_lane(box->lane);
    if (box->type != XP_EVENT_KIND)
        xp_forget(box);
    if (box->point)
        xp_engine.let_go(box->event);
    if (has_object)
        xp_python_end(box);
    if (queue)
        xp_let_go(queue);
    if (!has_object && box->unseen) {
        pthread_mutex_lock(&lock);
        box->next = spare;
        spare = box;
        pthread_mutex_unlock(&lock);
    }
}

static int32_t references(int64_t count) { return (int32_t)(uint32_t)count; }

bool xp_count(xp_box *box, int64_t more)
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

bool xp_hold(xp_box *box) { return xp_count(box, XP_HOLD); }

void xp_let_go(xp_box *box)
{
    if (__atomic_sub_fetch(&box->count, XP_HOLD, __ATOMIC_ACQ_REL) == 0)
        end(box);
}

/* Python's count of references changed by that much. */
XP_EXPORT void xpushare_ur_count(xp_box *box, int32_t more)
{
    if (more > 0)
        __atomic_fetch_add(&box->count, more, __ATOMIC_ACQ_REL);
    for (; more < 0; more++)
        xp_count(box, -1);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

xp_engine_functions xp_engine;

XP_EXPORT void xpushare_ur_engine(const xp_engine_functions *functions) { xp_engine = *functions; }

bool xp_natives(void) { return xp_engine.state_at != NULL; }

bool xp_is(const xp_box *box, unsigned kind)
{
    /* A wrong address inside a box must not pass for another box. */
    return box && (uintptr_t)box % _Alignof(xp_box) == 0 && __atomic_load_n(&box->kind, __ATOMIC_ACQUIRE) == kind;
}

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

bool xp_is_done(const xp_box *event)
{
    uint64_t point;
    return !xp_is_owed(event) && xp_state_of(event, &point) == XP_DONE;
}
