/* The entry points: the functions by which the loader gets its tables, and those in the tables. */
#include "parts.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct {
    unsigned getter, count;
    const xp_slot *slots;
} xp_table;

#define XP_MOST_TABLES 32

typedef struct {
    const char *name;
    xp_fingerprint functions, getters; /* of the names of its tables' functions, and of those that fill the tables */
    xp_table tables[XP_MOST_TABLES]; /* in the order in which they stand in a handle's */
} xp_build;

static uint32_t unsupported(void) { return XP_UNSUPPORTED_FEATURE; }

#define XP_SLOT(function) ((xp_slot)function)
#define XP_NONE ((xp_slot)unsupported)
#define XP_TABLE(getter, slots) {getter, sizeof(slots) / sizeof(*slots), slots}
#include "functions.h"

#define XP_VERSION 12 /* 0.12 */

#define XP_BUILDS (sizeof xp_builds / sizeof *xp_builds)

static bool same(xp_fingerprint a, xp_fingerprint b) { return a.count == b.count && a.sum == b.sum; }

static pthread_mutex_t builds = PTHREAD_MUTEX_INITIALIZER; /* for what follows */
static bool looked, named; /* named: the loader names its functions, so its build is certain */
static bool possible[XP_BUILDS];
static const xp_build *taken; /* the build whose tables `xp_dispatch` has */

static void look_at(const void *code)
{
    xp_fingerprint functions, getters;
    looked = true;
    xp_fingerprints(code, &functions, &getters);
    for (size_t i = 0; i < XP_BUILDS; i++)
        named |= possible[i] = same(functions, xp_builds[i].functions) && same(getters, xp_builds[i].getters);
    bool any = named;
    for (size_t i = 0; i < XP_BUILDS && !named; i++) /* a loader that names functions names all of them */
        any |= possible[i] = same(getters, xp_builds[i].getters) && functions.count < xp_builds[i].functions.count / 2;
    if (any)
        return;
    Dl_info info = {.dli_fname = "the loader"};
    dladdr(code, &info);
    xp_log("refused by this library, which knows no such build of Unified Runtime's loader, so that its tables may be "
           "smaller than ours: %s (%u functions, %#llx)",
           info.dli_fname, functions.count + getters.count, (unsigned long long)(functions.sum + getters.sum));
}

/* Return the table that the function with that number fills, or NULL. `before`: how many slots stand before it. */
static const xp_table *table_of(const xp_build *build, unsigned getter, ptrdiff_t *before)
{
    *before = 0;
    for (const xp_table *each = build->tables; each->slots; each++) {
        if (each->getter == getter)
            return each;
        *before += each->count;
    }
    return NULL;
}

/* Rule out the builds in which that table would stand elsewhere. All tables stand in one struct, and the loader begins
 * with the first. */
static void rule_out(unsigned getter, const xp_slot *table)
{
    static __thread const xp_slot *first;
    bool any = false, had = false;
    for (size_t i = 0; i < XP_BUILDS; i++) {
        ptrdiff_t before;
        bool known = table_of(&xp_builds[i], getter, &before) != NULL;
        if (known && before == 0)
            first = table;
        had |= possible[i];
        possible[i] &= known && first && table == first + before;
        any |= possible[i];
    }
    if (had && !any)
        xp_log("refused by this library, since the tables of this build of Unified Runtime's loader have other sizes "
               "than those of the builds that it knows");
}

/* The build of the loader that calls from `code` to have that table filled, or NULL if it is unknown. */
static const xp_build *build_of(const void *code, unsigned getter, const xp_slot *table)
{
    const xp_build *found = NULL;
    pthread_mutex_lock(&builds);
    if (!looked)
        look_at(code);
    if (!named)
        rule_out(getter, table);
    for (size_t i = XP_BUILDS; i-- > 0;)
        if (possible[i])
            found = &xp_builds[i];
    if (found && found != taken) {
        xp_slot *slot = xp_dispatch;
        taken = found;
        for (const xp_table *each = found->tables; each->slots; each++)
            for (unsigned k = 0; k < each->count; k++)
                *slot++ = each->slots[k];
    }
    pthread_mutex_unlock(&builds);
    return found;
}

static uint32_t fill(unsigned getter, const void *code, uint32_t version, xp_slot *table)
{
    if (!table)
        return XP_INVALID_NULL_POINTER;
    if (version != XP_VERSION)
        return XP_UNSUPPORTED_VERSION;
    const xp_build *build = build_of(code, getter, table);
    if (!build)
        return XP_UNSUPPORTED_VERSION;
    if (!xp_python_start(XP_FUNCTIONS, xp_flush))
        return XP_UNINITIALIZED;
    ptrdiff_t before;
    const xp_table *found = table_of(build, getter, &before);
    for (unsigned i = 0; found && i < found->count; i++)
        table[i] = found->slots[i];
    return found ? XP_SUCCESS : XP_UNSUPPORTED_FEATURE;
}

#define XP_GETTER(name)                                                                                                \
    XP_EXPORT uint32_t name(uint32_t version, xp_slot *table)                                                          \
    {                                                                                                                  \
        return fill(XP_##name, __builtin_return_address(0), version, table);                                           \
    }
XP_GETTERS(XP_GETTER)

/* --- without Python ----------------------------------------------------------------------------------------------- */

/* For an event whose command was carried out: whether it has succeeded, once it is no longer pending. */
static bool is_well(const xp_box *event)
{
    uint64_t point;
    int state = xp_state_of(event, &point);
    return state == XP_DONE || (state == XP_PENDING && xp_engine.wait_at(event->event, point) == XP_DONE);
}

enum { COMMAND_EXECUTION_STATUS = 3, COMPLETE = 0, SUBMITTED = 2 };

static bool status(const xp_box *box, const uint64_t *words)
{
    uint64_t point;
    if (words[1] != COMMAND_EXECUTION_STATUS)
        return xp_event_property(box, xp_command_forms[box->function].type, words);
    int state = xp_is_owed(box) ? XP_PENDING : xp_state_of(box, &point);
    uint32_t value = state == XP_DONE ? COMPLETE : SUBMITTED;
    return (state == XP_DONE || state == XP_PENDING) && xp_give(words, &value, sizeof value);
}

/* Whether a queue is empty. Python is asked if nothing is in its lane. */
static bool is_known_busy(const xp_box *queue, const uint64_t *words)
{
    bool empty = false;
    return words[1] == XP_QUEUE_EMPTY && xp_queue_is_busy(queue) && xp_give(words, &empty, sizeof empty);
}

/* Wait for the events that it may wait for. Unless all succeeded, Python reports the result. */
static bool wait_for(unsigned kind, uint32_t count, xp_box *const *events)
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
        good = xp_has_been_made(events[i]) && is_well(events[i]);
    xp_python_lock(unlocked);
    return good;
}

/* The last command of the queue is a point of ours. */
static bool finish_device(const xp_box *queue)
{
    xp_box *event = NULL;
    const uint64_t enqueue[] = {(uintptr_t)queue, 0, 0, (uintptr_t)&event};
    if (xp_answer(XP_EVENTS_WAIT, enqueue, 4))
        return false;
    bool good = wait_for(XP_EVENT_KIND, 1, &event);
    event->unseen = true;
    xp_count(event, -1);
    return good;
}

/* Answer without Python. Returns true if that succeeded; otherwise nothing was done. A program that holds its own
 * lock in such a call cannot deadlock with a thread that has Python's lock and wants the program's. */
static bool natively(unsigned function, const uint64_t *words, unsigned count)
{
    unsigned how = xp_native_answers[function].how, kind = xp_native_answers[function].kind;
    xp_box *box = (xp_box *)words[0];
    if (!xp_natives())
        return false;
    switch (how) {
    case XP_RETAINS: return xp_is(box, kind) && xp_count(box, 1);
    case XP_RELEASES: return xp_is(box, kind) && xp_count(box, -1);
    case XP_STATUS: return xp_is(box, kind) && status(box, words);
    case XP_WAITS: return words[0] && words[1] && wait_for(kind, (uint32_t)words[0], (xp_box *const *)words[1]);
    case XP_FINISHES: return xp_is(box, kind) && xp_finish(box, finish_device);
    case XP_ASKS:
        return (kind > XP_COUNTED_KINDS || xp_is(box, kind)) &&
               (xp_property_of(box, kind, words) || (kind == XP_QUEUE_KIND && is_known_busy(box, words)));
    case XP_CALLS_BACK: /* in other states, and without a function, Python answers */
        return xp_is(box, kind) && words[1] == COMPLETE && words[2] && xp_is_owed(box) &&
               xp_answer_later(xp_answer, function, words, count);
    default: return false;
    }
}

/* True if it was enqueued, or failed after that: `*result`. */
static bool enqueue(unsigned function, const uint64_t *words, unsigned count, uint32_t *result)
{
    const xp_command_form *form = &xp_command_forms[function];
    xp_box *event = NULL, **out = (xp_box **)words[form->event];
    if (!xp_enqueue(function, form, words, count, &event))
        return false;
    if (form->blocking && words[form->blocking])
        *result = xp_answer(XP_EVENT_WAIT, (uint64_t[]){1, (uintptr_t)&event}, 2);
    if (out && *result == XP_SUCCESS)
        *out = event;
    else if (event)
        xp_count(event, -1);
    return true;
}

/* Nobody can be asked. Functions that release something succeed, since everything is gone. */
static uint32_t over(unsigned function, uint32_t result) { return xp_ends[function] ? XP_SUCCESS : result; }

uint32_t xp_answer(unsigned function, const uint64_t *words, unsigned count)
{
    uint32_t result = xp_python_over();
    if (!result && natively(function, words, count))
        return XP_SUCCESS;
    if (!result && enqueue(function, words, count, &result))
        return result;
    if (result)
        return over(function, result);
    xp_catch_up(&xp_orders[function], words);
    result = xp_python_enter();
    if (!result) {
        result = xp_python_call(function, words, count);
        xp_python_exit();
    } else {
        result = over(function, result);
    }
    xp_caught_up(&xp_orders[function], words);
    return result;
}
