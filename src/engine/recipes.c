/* Calls the functions of a vendor's driver by their addresses, without the GIL, as its recipes say. */
#include "recipes.h"

#include "events.h"
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

int xp_invoke_all(const xp_call *calls, uint32_t count, uint64_t *done)
{
    int code = 0;
    for (*done = 0; *done < count && (code = invoke(&calls[*done])) == 0; ++*done)
        ;
    return code;
}

/* Make the call that a step describes. */
static xp_call filled_in(const xp_step *step, const uint64_t *values)
{
    xp_call call = {.function = step->call.function, .count = step->call.count};
    for (uint32_t k = 0; k < call.count; k++)
        call.arguments[k] = step->kinds[k] == XP_ARG_FIXED ? step->call.arguments[k] : values[step->kinds[k]];
    return call;
}

/* Returns the driver's code. `values`: by the kind of argument. `given`: NULL, or whether the driver will call
 * FUNCTION. */
static int perform(const xp_recipe *recipe, uint64_t *values, bool *given)
{
    uint64_t made = 0;
    int code = 0, number = 0;
    for (uint32_t i = 0; i < recipe->count; i++) {
        const xp_step *step = &recipe->steps[i];
        if (code && !(step->cleanup && made))
            continue;
        bool gives = false;
        values[XP_ARG_OUT] = (uintptr_t)&made;
        values[XP_ARG_MADE] = made;
        values[XP_ARG_INT_AT] = (uintptr_t)&number;
        for (uint32_t k = 0; k < step->call.count; k++) {
            gives = gives || step->kinds[k] == XP_ARG_DATA;
            number = step->kinds[k] == XP_ARG_INT_AT ? (int)step->call.arguments[k] : number;
        }
        xp_call call = filled_in(step, values);
        int rc = invoke(&call);
        if (given)
            *given = *given || (gives && rc == 0);
        code = code ? code : rc;
    }
    return code;
}

void xp_queue_calls_unref(xp_queue_calls *calls)
{
    if (calls && __atomic_sub_fetch(&calls->refs, 1, __ATOMIC_ACQ_REL) == 0)
        free(calls);
}

int xp_word_operation(const xp_recipe *recipe, uint64_t handle, uint64_t address, uint64_t point)
{
    uint64_t values[XP_ARG_KINDS] = {[XP_ARG_QUEUE] = handle, [XP_ARG_ADDRESS] = address, [XP_ARG_POINT] = point,
                                     [XP_ARG_POINT_LOW] = (uint32_t)point};
    return perform(recipe, values, NULL);
}

int64_t xp_captured(const xp_queue_calls *calls, uint64_t handle)
{
    int32_t status = 0;
    uint64_t values[XP_ARG_KINDS] = {[XP_ARG_QUEUE] = handle, [XP_ARG_STATUS_OUT] = (uintptr_t)&status};
    int code = perform(&calls->captured, values, NULL);
    return code ? code : status ? XP_CODE_CAPTURED : 0;
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
        invoke(&j->calls[i]); /* nothing can be done about a failing release */
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

/* --- host functions ----------------------------------------------------------------------------------------------- */

void xp_completion_unref(xp_completion *c)
{
    if (c == NULL || __atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL))
        return;
    xp_slot_unref(c->s);
    free(c);
}

xp_completion *xp_completion_new(xp_slot *s, uint64_t point)
{
    xp_completion *c = malloc(sizeof *c);
    if (c) {
        *c = (xp_completion){.refs = 1, .s = s, .point = point};
        xp_slot_ref(s);
    }
    return c;
}

/* The stream has come here, so everything before the point is complete or lost. A driver whose context is broken
 * never runs this, and the completion is never freed. */
static void complete(xp_completion *c, bool failed)
{
    xp_slot *s = c->s;
    xp_view v;
    if (xp_usable(s->d)) { /* otherwise this process has left, and has lost the points that it owed */
        xp_read(s->w, &v);
        uint32_t lost = XP_LOAD(&c->lost);
        if (xp_state(&v, c->point) != XP_PENDING || c->point > v.top) {
            /* it is lost, and a release is final */
        } else if (lost || failed) {
            xp_lose(s->w, s->d->bell, lost ? lost : XP_CAUSE_QUEUE, lost ? c->pid : (uint64_t)getpid(), 0);
        } else {
            xp_complete(s, c->point);
        }
    }
    xp_completion_unref(c);
}

static void host_function(void *data) { complete(data, false); }

static void event_callback(void *event, int32_t status, void *data)
{
    (void)event;
    complete(data, status < 0);
}

int xp_launch(const xp_queue_calls *calls, uint64_t handle, xp_completion *c)
{
    bool given = false;
    uintptr_t function = calls->event_callback ? (uintptr_t)event_callback : (uintptr_t)host_function;
    uint64_t values[XP_ARG_KINDS] = {[XP_ARG_QUEUE] = handle, [XP_ARG_FUNCTION] = function,
                                     [XP_ARG_DATA] = (uintptr_t)c};
    int code = perform(&calls->host, values, &given);
    if (!given)
        xp_completion_unref(c);
    return code;
}

/* --- commands of programs that have no Python --------------------------------------------------------------------- */

enum { PIECEWISE_MOST = 64 }; /* bytes of a pattern that is written piece by piece */

typedef struct {
    const xp_queue_calls *recipes;
    uint64_t handle;
    xp_call *calls;
    uint32_t count, room;
} call_list;

static uint8_t bytes[256]; /* each has its own index */

__attribute__((constructor)) static void set_bytes(void)
{
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
}

/* Returns false if the driver has no such call, or there is no memory. */
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
        [XP_ARG_QUEUE] = list->handle, [XP_ARG_TO] = to, [XP_ARG_FROM] = from, [XP_ARG_NBYTES] = number,
        [XP_ARG_VALUE] = value, [XP_ARG_VALUE_AT] = (uintptr_t)&bytes[value & 0xff], [XP_ARG_TIMES] = number};
    list->calls[list->count++] = filled_in(&recipe->steps[0], values);
    return true;
}

static bool add_copy(call_list *list, uint64_t to, uint64_t from, uint64_t nbytes)
{
    return add_call(list, &list->recipes->copy, to, from, 0, nbytes);
}

/* `times` patterns, with the fill for their size. */
static bool add_fill(call_list *list, uint64_t to, const char *pattern, unsigned size, uint64_t times)
{
    uint64_t value = 0;
    memcpy(&value, pattern, size);
    return add_call(list, &list->recipes->fills[size / 2], to, 0, value, times);
}

static bool has_fill(const call_list *list, uint64_t size, uint64_t to)
{
    return (size == 1 || size == 2 || size == 4) && to % size == 0 && list->recipes->fills[size / 2].count;
}

/* Like the package's `fill_steps`, except for patterns that it stages. */
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

bool xp_calls_for(const xp_queue_calls *calls, uint64_t handle, const xp_work *work, xp_call **made, uint32_t *count)
{
    call_list list = {.recipes = calls, .handle = handle};
    bool good = add_work(&list, work);
    *made = list.calls;
    *count = list.count;
    return good;
}
