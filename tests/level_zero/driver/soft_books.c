/* The software driver's books: which objects live, which calls were made, and which of them fail or take long. */
#include "soft.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const kinds[KINDS] = {"context", "memory",  "opened",     "system", "physical", "reservation",
                                         "mapping", "event_pool", "event", "list"};
/* Functions that older drivers lack; the real loader answers "uninitialized" for those. */
static const char *const newer[] = {
    "zeInitDrivers", "zeDriverGetDefaultContext", "zeMemPutIpcHandle", "zeMemGetIpcHandleFromFileDescriptorExp",
    "zeMemGetFileDescriptorFromIpcHandleExp", "zeMemGetIpcHandleWithProperties", "zePhysicalMemGetProperties",
    "zeEventPoolPutIpcHandle", "zeEventCounterBasedCreate", "zeEventCounterBasedGetIpcHandle",
    "zeEventCounterBasedOpenIpcHandle", "zeEventCounterBasedCloseIpcHandle", "zeEventCounterBasedGetDeviceAddress",
    "zeEventGetCounterBasedFlags", "zeDeviceGetCounterBasedEventMaxValue", "zeDeviceSynchronize",
    "zeCommandListAppendHostFunction", "zeCommandListAppendMemoryCopyWithParameters",
    "zeCommandListAppendMemoryFillWithParameters"};

typedef struct entry {
    struct entry *next;
    const char *name;
    int calls, fails_at, armed, stall; /* armed: 1 at the call `fails_at`, 2 at each call */
    uint32_t result;
} entry;

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static object *first;
static int counts[KINDS], violations;
static char said[512]; /* the first violation */
static entry *entries;
static char *refused_names;
static bool lost;

void soft_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void soft_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

object *soft_objects(void)
{
    return first;
}

void *soft_new(enum kind kind, size_t size)
{
    object *made = calloc(1, size);
    made->kind = kind;
    soft_lock();
    made->next = first;
    first = made;
    ++counts[kind];
    soft_unlock();
    return made;
}

void *soft_own_context(void)
{
    void *made = soft_new(CONTEXT, sizeof(object));
    --counts[CONTEXT];
    return made;
}

void soft_delete(void *what)
{
    soft_lock();
    object **at = &first;
    while (*at != what)
        at = &(*at)->next;
    *at = (*at)->next;
    --counts[((object *)what)->kind];
    soft_unlock();
    free(what);
}

void *soft_live(const void *handle, enum kind kind)
{
    soft_lock();
    object *found = first;
    while (found && (found != handle || found->kind != kind))
        found = found->next;
    soft_unlock();
    if (!found)
        soft_violation("%p is no live %s", handle, kinds[kind]);
    return found;
}

void soft_violation(const char *format, ...)
{
    char text[sizeof said];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    soft_lock();
    if (!violations++)
        strcpy(said, text);
    soft_unlock();
    fprintf(stderr, "software driver: %s\n", text);
}

static entry *entry_of(const char *name) /* call it locked */
{
    for (entry *each = entries; each; each = each->next)
        if (!strcmp(each->name, name))
            return each;
    entry *made = calloc(1, sizeof *made);
    made->name = strdup(name);
    made->next = entries;
    return entries = made;
}

static bool among(const char *names, const char *name) /* separated by commas */
{
    size_t length = strlen(name);
    for (const char *at = names; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && (at[length] == ',' || !at[length]))
            return true;
    return false;
}

ze_result_t soft_enter(const char *function)
{
    if (soft_old()) {
        if (!strncmp(function, "zex", 3))
            return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
        for (size_t i = 0; i < sizeof newer / sizeof *newer; ++i)
            if (!strcmp(newer[i], function))
                return ZE_RESULT_ERROR_UNINITIALIZED;
    }
    soft_lock();
    entry *each = entry_of(function);
    ++each->calls;
    ze_result_t result = ZE_RESULT_SUCCESS;
    if (each->armed == 2 || (each->armed == 1 && each->calls == each->fails_at))
        result = (ze_result_t)each->result;
    if (among(refused_names, function))
        result = ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    lost |= result == ZE_RESULT_ERROR_DEVICE_LOST;
    int stall = each->stall;
    soft_unlock();
    if (stall)
        usleep(stall * 1000);
    return result;
}

static bool setting(const char *name, const char *value)
{
    const char *is = getenv(name);
    return is && !strcmp(is, value);
}

bool soft_old(void)
{
    return setting("SOFTZE_OLD", "1");
}

bool soft_narrow(void)
{
    return setting("SOFTZE_BITS", "32");
}

bool soft_plain(void)
{
    return setting("SOFTZE_PLAIN", "1");
}

bool soft_lost(void)
{
    return lost;
}

int soft_devices(void)
{
    const char *is = getenv("SOFTZE_DEVICES");
    int number = is ? atoi(is) : 1;
    return number < 0 ? 0 : number > MAX_DEVICES ? MAX_DEVICES : number;
}

uint64_t soft_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* --- for tests ---------------------------------------------------------------------------------------------------- */

extern int soft_fds; /* soft_memory.c */

int softze_left(const char *kind)
{
    if (!strcmp(kind, "fd"))
        return soft_fds;
    if (!strcmp(kind, "violation"))
        return violations;
    for (int i = 0; i < KINDS; ++i)
        if (!strcmp(kind, kinds[i]))
            return counts[i];
    return -1;
}

int softze_books(char *out, size_t size)
{
    soft_lock();
    int total = 0;
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < KINDS + 2; ++i) {
        const char *name = i < KINDS ? kinds[i] : i == KINDS ? "fd" : "violation";
        int number = softze_left(name);
        total += number;
        if (number && at < size)
            at += (size_t)snprintf(out + at, size - at, "%s%d %s", at ? ", " : "", number, name);
    }
    if (violations && at < size)
        snprintf(out + at, size - at, " (%s)", said);
    soft_unlock();
    return total;
}

void softze_fail(const char *function, int nth, uint32_t result)
{
    soft_lock();
    entry *each = entry_of(function);
    each->armed = nth ? 1 : 2;
    each->fails_at = each->calls + nth;
    each->result = result ? result : ZE_RESULT_ERROR_DEVICE_LOST;
    soft_unlock();
}

void softze_stall(const char *function, int milliseconds)
{
    soft_lock();
    entry_of(function)->stall = milliseconds;
    soft_unlock();
}

int softze_calls(const char *function)
{
    soft_lock();
    int calls = entry_of(function)->calls;
    soft_unlock();
    return calls;
}

const char *softze_called(int index)
{
    soft_lock();
    entry *each = entries;
    while (each && (!each->calls || index--))
        each = each->next;
    soft_unlock();
    return each ? each->name : NULL;
}

void softze_reset(void)
{
    soft_lock();
    for (entry *each = entries; each; each = each->next)
        each->calls = each->armed = each->stall = 0;
    violations = 0;
    soft_unlock();
}

__attribute__((constructor)) static void read_settings(void)
{
    const char *names = getenv("SOFTZE_REFUSE");
    refused_names = names ? strdup(names) : NULL;
    const char *failing = getenv("SOFTZE_FAIL");
    const char *colon = failing ? strrchr(failing, ':') : NULL;
    if (colon) {
        char *name = strndup(failing, (size_t)(colon - failing));
        softze_fail(name, atoi(colon + 1), 0);
        free(name);
    }
}

__attribute__((destructor)) static void write_books(void)
{
    const char *name = getenv("SOFTZE_BOOKS");
    FILE *out = name ? fopen(name, "a") : NULL;
    if (!out)
        return;
    char text[1024];
    int left = softze_books(text, sizeof text);
    fprintf(out, "process %d: %d left%s%s\n", getpid(), left, left ? ": " : "", text);
    fclose(out);
}
