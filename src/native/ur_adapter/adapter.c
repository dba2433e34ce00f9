/* The entry points: what the loader asks for its tables, and what it calls through them. */
#include "adapter.h"

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
    unsigned functions; /* that it names, and */
    uint64_t fingerprint;
    xp_table tables[XP_MOST_TABLES];
} xp_build;

static uint32_t unsupported(void) { return XP_UNSUPPORTED_FEATURE; }

#define XP_SLOT(function) ((xp_slot)function)
#define XP_NONE ((xp_slot)unsupported)
#define XP_TABLE(getter, slots) {getter, sizeof(slots) / sizeof(*slots), slots}
#include "functions.h"

const uint32_t xp_queue_kind = XP_QUEUE_KIND, xp_event_kind = XP_EVENT_KIND, xp_counted_kinds = XP_COUNTED_KINDS,
               xp_host_trait = XP_HOST_TRAIT;
const unsigned xp_event_wait = XP_EVENT_WAIT, xp_events_wait = XP_EVENTS_WAIT;

#define XP_VERSION 12 /* 0.12 */
#define XP_MOST_SLOTS 512

xp_slot xp_dispatch[XP_MOST_SLOTS];

void xp_log(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "libur_adapter_xpushare: %s\n", text);
}

/* The build that calls from `code`, NULL if it is not known. */
static const xp_build *build_of(const void *code)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const xp_build *found;
    static bool looked;
    pthread_mutex_lock(&lock);
    if (!looked) {
        Dl_info info = {.dli_fname = "the loader"};
        unsigned count;
        uint64_t fingerprint;
        looked = true;
        xp_fingerprint(code, &count, &fingerprint);
        for (size_t i = 0; i < sizeof xp_builds / sizeof *xp_builds; i++)
            if (xp_builds[i].functions == count && xp_builds[i].fingerprint == fingerprint)
                found = &xp_builds[i];
        xp_slot *slot = xp_dispatch;
        for (const xp_table *table = found ? found->tables : NULL; table && table->slots; table++)
            for (unsigned k = 0; k < table->count; k++)
                *slot++ = table->slots[k];
        dladdr(code, &info);
        if (!found)
            xp_log("refused by this library, which knows no such build of Unified Runtime's loader, so that its tables "
                   "may be smaller than ours: %s (%u functions, %#llx)",
                   info.dli_fname, count, (unsigned long long)fingerprint);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static uint32_t fill(unsigned getter, const void *code, uint32_t version, xp_slot *table)
{
    if (!table)
        return XP_INVALID_NULL_POINTER;
    if (version != XP_VERSION)
        return XP_UNSUPPORTED_VERSION;
    const xp_build *build = build_of(code);
    if (!build)
        return XP_UNSUPPORTED_VERSION;
    if (!xp_python_start(XP_FUNCTIONS))
        return XP_UNINITIALIZED;
    for (const xp_table *each = build->tables; each->slots; each++)
        if (each->getter == getter) {
            for (unsigned i = 0; i < each->count; i++)
                table[i] = each->slots[i];
            return XP_SUCCESS;
        }
    return XP_UNSUPPORTED_FEATURE;
}

#define XP_GETTER(name)                                                                                                \
    XP_EXPORT uint32_t name(uint32_t version, xp_slot *table);                                                         \
    uint32_t name(uint32_t version, xp_slot *table)                                                                    \
    {                                                                                                                  \
        return fill(XP_##name, __builtin_return_address(0), version, table);                                           \
    }
XP_GETTERS(XP_GETTER)

/* Nobody can be asked; what gives something back is done, as all of it is gone. */
static uint32_t over(unsigned function, uint32_t result) { return xp_ends[function] ? XP_SUCCESS : result; }

uint32_t xp_answer(unsigned function, const uint64_t *words, unsigned count)
{
    uint32_t result = xp_python_over();
    if (!result && xp_natively(xp_native_answers[function].how, xp_native_answers[function].kind, words))
        return XP_SUCCESS;
    if (!result && xp_enqueue(function, &xp_command_forms[function], words, count, &result))
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
