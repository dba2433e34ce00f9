/* The software driver's immediate command lists. Lists of one device and index share a hardware queue: a thread that
 * does one thing after the other, whichever list it came by. */
#include "soft.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)

typedef struct operation {
    struct operation *next;
    list *list;
    enum { COPY, FILL, STORE, ADD, WAIT, STAMP, CALL, SIGNAL, RESET } kind;
    void *to;
    const void *from;
    size_t size, pattern_size;
    unsigned char pattern[128];
    uint64_t value;
    event *event;
    point point;
    uint32_t comparison; /* of WAIT: of Intel's action flags */
    bool narrow;
    ze_host_function_callback_t function;
} operation;

struct hardware {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    operation *first, **last;
    int lists;
    bool ending;
    pthread_t thread;
};

enum { EQUAL = 1, NOT_EQUAL = 2, GREATER = 4, GREATER_EQUAL = 8, LESS = 16, LESS_EQUAL = 32 };

static struct hardware *hardware[MAX_DEVICES][QUEUES];
extern int soft_index(ze_device_handle_t device); /* soft_devices.c */

static bool satisfied(const operation *o)
{
    uint64_t is = *o->point.at, wanted = o->point.value;
    if (o->narrow) {
        is = (uint32_t)is;
        wanted = (uint32_t)wanted;
    }
    switch (o->comparison) {
    case EQUAL:
        return is == wanted;
    case NOT_EQUAL:
        return is != wanted;
    case GREATER:
        return is > wanted;
    case GREATER_EQUAL:
        return is >= wanted;
    case LESS:
        return is < wanted;
    default:
        return is <= wanted;
    }
}

static void perform(operation *o)
{
    switch (o->kind) {
    case COPY:
        if (o->size > 8)
            memmove(o->to, o->from, o->size);
        else /* a kernel of single bytes: whoever looks meanwhile sees a part */
            for (size_t i = 0; i < o->size; ++i) {
                ((volatile char *)o->to)[i] = ((const volatile char *)o->from)[i];
                sched_yield();
            }
        break;
    case FILL:
        for (size_t i = 0; i < o->size; i += o->pattern_size)
            memcpy((char *)o->to + i, o->pattern, o->pattern_size);
        break;
    case STORE:
        *(_Atomic uint64_t *)o->to = o->value;
        break;
    case ADD:
        *(_Atomic uint64_t *)o->to += o->value;
        break;
    case WAIT:
        for (int i = 0; o->point.at && !o->list->cancelled && !satisfied(o); ++i)
            i < 200 ? (void)sched_yield() : (void)usleep(20);
        break;
    case STAMP:
        *(uint64_t *)o->to = soft_now();
        break;
    case CALL:
        o->function(o->to);
        break;
    case SIGNAL:
        o->event->slot->start = o->event->slot->end = soft_now();
        o->event->slot->state = 1;
        break;
    case RESET:
        o->event->slot->state = 0;
        break;
    }
}

static void *work(void *argument)
{
    struct hardware *h = argument;
    pthread_mutex_lock(&h->mutex);
    for (;;) {
        while (!h->first && !h->ending)
            pthread_cond_wait(&h->changed, &h->mutex);
        operation *o = h->first;
        if (!o)
            break;
        pthread_mutex_unlock(&h->mutex);
        perform(o);
        pthread_mutex_lock(&h->mutex);
        h->first = o->next;
        if (!h->first)
            h->last = &h->first;
        ++o->list->done;
        free(o);
    }
    pthread_mutex_unlock(&h->mutex);
    return NULL;
}

static void put(list *l, operation what)
{
    operation *o = malloc(sizeof *o);
    *o = what;
    o->list = l;
    o->next = NULL;
    pthread_mutex_lock(&l->hardware->mutex);
    *l->hardware->last = o;
    l->hardware->last = &o->next;
    ++l->submitted;
    pthread_cond_signal(&l->hardware->changed);
    pthread_mutex_unlock(&l->hardware->mutex);
}

static ze_result_t drain(list *l, uint64_t timeout)
{
    uint64_t began = soft_now(), wanted = l->submitted;
    for (int i = 0; l->done < wanted; ++i) {
        if (timeout != UINT64_MAX && soft_now() - began >= timeout)
            return ZE_RESULT_NOT_READY;
        i < 200 ? (void)sched_yield() : (void)usleep(20);
    }
    return ZE_RESULT_SUCCESS;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static struct hardware *attach(int device, uint32_t index)
{
    soft_lock();
    struct hardware **h = &hardware[device][index];
    if (!*h) {
        *h = calloc(1, sizeof **h);
        (*h)->last = &(*h)->first;
        pthread_mutex_init(&(*h)->mutex, NULL);
        pthread_cond_init(&(*h)->changed, NULL);
        pthread_create(&(*h)->thread, NULL, work, *h);
    }
    ++(*h)->lists;
    struct hardware *found = *h;
    soft_unlock();
    return found;
}

static void detach(int device, uint32_t index)
{
    soft_lock();
    struct hardware *h = hardware[device][index];
    if (--h->lists)
        h = NULL;
    else
        hardware[device][index] = NULL;
    soft_unlock();
    if (!h)
        return;
    pthread_mutex_lock(&h->mutex);
    h->ending = true;
    pthread_cond_signal(&h->changed);
    pthread_mutex_unlock(&h->mutex);
    pthread_join(h->thread, NULL);
    free(h);
}

ze_result_t zeCommandListCreateImmediate(ze_context_handle_t context, ze_device_handle_t device,
                                         const ze_command_queue_desc_t *desc, ze_command_list_handle_t *out)
{
    ENTER();
    if (!soft_live(context, CONTEXT))
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (desc->ordinal || desc->index >= QUEUES)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    int fd = soft_memfd(PAGE);
    void *counter = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counter == MAP_FAILED) {
        soft_close(fd);
        return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    list *l = soft_new(LIST, sizeof *l);
    l->context = context;
    l->device = device;
    l->ordinal = desc->ordinal;
    l->index = desc->index;
    l->flags = desc->flags;
    l->mode = desc->mode;
    l->priority = desc->priority;
    l->fd = fd;
    l->counter = counter;
    l->hardware = attach(soft_index(device), desc->index);
    *out = (ze_command_list_handle_t)l;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeCommandListDestroy(ze_command_list_handle_t handle)
{
    ENTER();
    list *l = soft_live(handle, LIST);
    if (!l)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (l->done != l->submitted && !soft_lost())
        soft_violation("a command list was destroyed with unfinished work");
    l->cancelled = 1;
    drain(l, UINT64_MAX);
    detach(soft_index(l->device), l->index);
    munmap((void *)l->counter, PAGE);
    soft_close(l->fd);
    soft_delete(l);
    return ZE_RESULT_SUCCESS;
}

/* --- what is appended --------------------------------------------------------------------------------------------- */

static ze_result_t before(list *l, uint32_t number, ze_event_handle_t *events)
{
    if (!l)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (number && !events)
        return ZE_RESULT_ERROR_INVALID_SIZE;
    for (uint32_t i = 0; i < number; ++i)
        if (!soft_live(events[i], EVENT))
            return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    for (uint32_t i = 0; i < number; ++i)
        put(l, (operation){.kind = WAIT,
                           .comparison = GREATER_EQUAL,
                           .point = soft_point((event *)events[i]),
                           .narrow = soft_narrow()});
    return ZE_RESULT_SUCCESS;
}

static ze_result_t after(list *l, ze_event_handle_t handle)
{
    event *e = handle ? soft_live(handle, EVENT) : NULL;
    if (handle && !e)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (e && e->slot)
        put(l, (operation){.kind = SIGNAL, .event = e});
    else if (e && e->increment)
        put(l, (operation){.kind = ADD, .to = e->external, .value = e->increment});
    else if (e) {
        uint64_t value = ++l->signals;
        soft_count(e, l, value);
        put(l, (operation){.kind = STORE, .to = (void *)l->counter, .value = value});
    }
    return l->mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS ? drain(l, UINT64_MAX) : ZE_RESULT_SUCCESS;
}

static ze_result_t append(ze_command_list_handle_t handle, operation what, ze_event_handle_t signal, uint32_t number,
                          ze_event_handle_t *waits)
{
    list *l = soft_live(handle, LIST);
    ze_result_t result = before(l, number, waits);
    if (result)
        return result;
    put(l, what);
    return after(l, signal);
}

ze_result_t zeCommandListAppendMemoryCopy(ze_command_list_handle_t handle, void *to, const void *from, size_t size,
                                          ze_event_handle_t signal, uint32_t number, ze_event_handle_t *waits)
{
    ENTER();
    /* The host's own pages may be copied, too; addresses of the device must be known. */
    if (((uintptr_t)to >= HIGH && !soft_reachable(to, size)) ||
        ((uintptr_t)from >= HIGH && !soft_reachable(from, size)))
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    operation o = {.kind = COPY, .to = soft_host(to), .from = soft_host(from), .size = size};
    return append(handle, o, signal, number, waits);
}

ze_result_t zeCommandListAppendMemoryCopyWithParameters(ze_command_list_handle_t handle, void *to, const void *from,
                                                        size_t size, const void *next, ze_event_handle_t signal,
                                                        uint32_t number, ze_event_handle_t *waits)
{
    ENTER();
    return zeCommandListAppendMemoryCopy(handle, to, from, size, signal, number, waits);
}

ze_result_t zeCommandListAppendMemoryFill(ze_command_list_handle_t handle, void *to, const void *pattern,
                                          size_t pattern_size, size_t size, ze_event_handle_t signal, uint32_t number,
                                          ze_event_handle_t *waits)
{
    ENTER();
    if (!pattern_size || pattern_size > 128 || pattern_size & (pattern_size - 1) || size % pattern_size)
        return ZE_RESULT_ERROR_INVALID_SIZE;
    if (!soft_reachable(to, size))
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    operation o = {.kind = FILL, .to = soft_host(to), .size = size, .pattern_size = pattern_size};
    memcpy(o.pattern, pattern, pattern_size);
    return append(handle, o, signal, number, waits);
}

ze_result_t zeCommandListAppendMemoryFillWithParameters(ze_command_list_handle_t handle, void *to, const void *pattern,
                                                        size_t pattern_size, size_t size, const void *next,
                                                        ze_event_handle_t signal, uint32_t number,
                                                        ze_event_handle_t *waits)
{
    ENTER();
    return zeCommandListAppendMemoryFill(handle, to, pattern, pattern_size, size, signal, number, waits);
}

ze_result_t zeCommandListAppendBarrier(ze_command_list_handle_t handle, ze_event_handle_t signal, uint32_t number,
                                       ze_event_handle_t *waits)
{
    ENTER();
    list *l = soft_live(handle, LIST);
    ze_result_t result = before(l, number, waits);
    return result ? result : after(l, signal);
}

ze_result_t zeCommandListAppendSignalEvent(ze_command_list_handle_t handle, ze_event_handle_t signal)
{
    ENTER();
    list *l = soft_live(handle, LIST);
    return l ? after(l, signal) : ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
}

ze_result_t zeCommandListAppendWaitOnEvents(ze_command_list_handle_t handle, uint32_t number, ze_event_handle_t *waits)
{
    ENTER();
    list *l = soft_live(handle, LIST);
    ze_result_t result = before(l, number, waits);
    return result ? result : after(l, NULL);
}

ze_result_t zeCommandListAppendEventReset(ze_command_list_handle_t handle, ze_event_handle_t which)
{
    ENTER();
    event *e = soft_live(which, EVENT);
    if (!e || !e->slot)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    return append(handle, (operation){.kind = RESET, .event = e}, NULL, 0, NULL);
}

ze_result_t zeCommandListAppendWriteGlobalTimestamp(ze_command_list_handle_t handle, uint64_t *to,
                                                    ze_event_handle_t signal, uint32_t number, ze_event_handle_t *waits)
{
    ENTER();
    if (!soft_reachable(to, 8))
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    return append(handle, (operation){.kind = STAMP, .to = soft_host(to)}, signal, number, waits);
}

ze_result_t zeCommandListAppendHostFunction(ze_command_list_handle_t handle, ze_host_function_callback_t function,
                                            void *data, const void *next, ze_event_handle_t signal, uint32_t number,
                                            ze_event_handle_t *waits)
{
    ENTER();
    return append(handle, (operation){.kind = CALL, .function = function, .to = data}, signal, number, waits);
}

static void *word_at(void *at, size_t size) /* where a word for the device lies; NULL: nowhere */
{
    if (!soft_plain())
        return soft_reachable(at, size) ? soft_host(at) : NULL;
    soft_lock();
    memory *m = soft_find(at);
    if (m && m->head.kind == SYSTEM)
        at = soft_address(m);
    soft_unlock();
    return soft_host(at);
}

static ze_result_t wait_on(ze_command_list_handle_t handle, const wait_on_memory *desc, void *at, uint64_t value,
                           ze_event_handle_t signal, bool narrow)
{
    at = word_at(at, narrow ? 4 : 8);
    if (!at || !desc->action || desc->action & (desc->action - 1) || desc->action > LESS_EQUAL)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    operation o = {.kind = WAIT, .comparison = desc->action, .narrow = narrow};
    o.point = (point){at, value};
    return append(handle, o, signal, 0, NULL);
}

ze_result_t zexCommandListAppendWaitOnMemory(ze_command_list_handle_t handle, wait_on_memory *desc, void *at,
                                             uint32_t value, ze_event_handle_t signal)
{
    ENTER();
    return wait_on(handle, desc, at, value, signal, true);
}

ze_result_t zexCommandListAppendWaitOnMemory64(ze_command_list_handle_t handle, wait_on_memory *desc, void *at,
                                               uint64_t value, ze_event_handle_t signal)
{
    ENTER();
    return soft_narrow() ? ZE_RESULT_ERROR_UNSUPPORTED_FEATURE : wait_on(handle, desc, at, value, signal, false);
}

ze_result_t zexCommandListAppendWriteToMemory(ze_command_list_handle_t handle, write_to_memory *desc, void *at,
                                              uint64_t value)
{
    ENTER();
    at = word_at(at, 8);
    if (!at)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    return append(handle, (operation){.kind = STORE, .to = at, .value = value}, NULL, 0, NULL);
}

ze_result_t zeDeviceSynchronize(ze_device_handle_t device)
{
    ENTER();
    for (bool busy = true; busy;) { /* other threads may create and destroy lists meanwhile */
        busy = false;
        soft_lock();
        for (object *each = soft_objects(); each; each = each->next)
            if (each->kind == LIST && ((list *)each)->device == device)
                busy |= ((list *)each)->done != ((list *)each)->submitted;
        soft_unlock();
        if (busy)
            usleep(20);
    }
    return ZE_RESULT_SUCCESS;
}

/* --- the state of a list ------------------------------------------------------------------------------------------ */

ze_result_t zeCommandListHostSynchronize(ze_command_list_handle_t handle, uint64_t timeout)
{
    ENTER();
    list *l = soft_live(handle, LIST);
    return l ? drain(l, timeout) : ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
}

#define ANSWERS(function, type, answer)                                                                                \
    ze_result_t function(ze_command_list_handle_t handle, type *out)                                                   \
    {                                                                                                                  \
        ENTER();                                                                                                       \
        list *l = soft_live(handle, LIST);                                                                             \
        if (l)                                                                                                         \
            *out = answer;                                                                                             \
        return l ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_NULL_HANDLE;                                            \
    }

ANSWERS(zeCommandListGetDeviceHandle, ze_device_handle_t, l->device)
ANSWERS(zeCommandListGetContextHandle, ze_context_handle_t, l->context)
ANSWERS(zeCommandListGetOrdinal, uint32_t, l->ordinal)
ANSWERS(zeCommandListImmediateGetIndex, uint32_t, l->index)
ANSWERS(zeCommandListIsImmediate, ze_bool_t, 1)
