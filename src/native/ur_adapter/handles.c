/* Handles, and what is answered without Python: references, the status of events and waits for them. A program that holds a
 * lock of its own in such a call cannot deadlock with a thread that has Python's lock and wants the program's. */
#include "adapter.h"

#include <pthread.h>
#include <sys/mman.h>

enum { PENDING, DONE };
enum { COMMAND_EXECUTION_STATUS = 3, COMPLETE = 0, SUBMITTED = 2 };

/* What a handle points to. It stays for ever: a program may hand in one that is long gone. */
typedef struct xp_box {
    const xp_slot *dispatch; /* where the loader looks */
    uint32_t kind;           /* 0: references are Python's business, or it is gone */
    int32_t references;
    void *event; /* its slot, in the engine; or NULL */
    struct xp_box *next;
} xp_box;

XP_EXPORT void *xpushare_ur_boxes(uint64_t count);
void *xpushare_ur_boxes(uint64_t count)
{
    xp_box *made = mmap(NULL, count * sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
    for (uint64_t i = 0; i < count; i++)
        made[i].dispatch = xp_dispatch;
    return made;
}

/* --- what the last reference leaves to Python --------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
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

xp_box *xp_next_ended(const xp_box *box) { return box->next; }

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

/* --- calls -------------------------------------------------------------------------------------------------------- */

static int (*newest_state)(void *), (*newest_wait)(void *);

XP_EXPORT void xpushare_ur_engine(void *state, void *wait);
void xpushare_ur_engine(void *state, void *wait)
{
    newest_state = (int (*)(void *))state;
    newest_wait = (int (*)(void *))wait;
}

static bool is(const xp_box *box, unsigned kind) { return box && __atomic_load_n(&box->kind, __ATOMIC_ACQUIRE) == kind; }

static bool retain(xp_box *box)
{
    int32_t known = __atomic_load_n(&box->references, __ATOMIC_RELAXED);
    while (known > 0)
        if (__atomic_compare_exchange_n(&box->references, &known, known + 1, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return true;
    return false;
}

static bool release(xp_box *box)
{
    int32_t known = __atomic_load_n(&box->references, __ATOMIC_RELAXED);
    while (known > 0)
        if (__atomic_compare_exchange_n(&box->references, &known, known - 1, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            if (known == 1) {
                __atomic_store_n(&box->kind, 0, __ATOMIC_RELEASE);
                end(box);
            }
            return true;
        }
    return false;
}

static bool status(const xp_box *box, const uint64_t *words)
{
    uint32_t *value = (uint32_t *)words[3];
    size_t *written = (size_t *)words[4];
    if (words[1] != COMMAND_EXECUTION_STATUS || !value || words[2] < sizeof *value)
        return false;
    int state = newest_state(box->event);
    if (state != DONE && state != PENDING)
        return false;
    *value = state == DONE ? COMPLETE : SUBMITTED;
    if (written)
        *written = sizeof *value;
    return true;
}

/* Wait for those that it may wait for. What became of them is Python's to tell, unless all is well. */
static bool wait(unsigned kind, uint32_t count, xp_box *const *events)
{
    for (uint32_t i = 0; i < count; i++)
        if (!is(events[i], kind) || !events[i]->event)
            return false;
    bool good = true;
    for (uint32_t i = 0; good && i < count; i++)
        good = newest_wait(events[i]->event) == DONE;
    return good;
}

bool xp_natively(unsigned how, unsigned kind, const uint64_t *words)
{
    xp_box *box = (xp_box *)words[0];
    if (!newest_state)
        return false;
    switch (how) {
    case XP_RETAINS:
        return is(box, kind) && retain(box);
    case XP_RELEASES:
        return is(box, kind) && release(box);
    case XP_STATUS:
        return is(box, kind) && box->event && status(box, words);
    case XP_WAITS:
        return words[0] && words[1] && wait(kind, (uint32_t)words[0], (xp_box *const *)words[1]);
    default:
        return false;
    }
}

/* Python's count of references changed by that much. */
XP_EXPORT void xpushare_ur_count(xp_box *box, int32_t more);
void xpushare_ur_count(xp_box *box, int32_t more) { __atomic_fetch_add(&box->references, more, __ATOMIC_ACQ_REL); }
