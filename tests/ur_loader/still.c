/* An adapter of the tests' own that does nothing right and nothing wrong: it makes handles, and says that all went well. What
 * the loader's layers say of a program over it, they say by themselves. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int (*slot)(void);
static const struct {
    const char *name, *getter;
    unsigned index;
} functions[] = {
#include "names.h"
};

static slot dispatch[512];
static struct {
    slot *table;
} things[64];
static unsigned made;

static void *make(void) { return things[made].table = dispatch, &things[made++]; }

static int list(uint32_t room, void **out, uint32_t *count)
{
    if (out && room)
        *out = make();
    if (count)
        *count = 1;
    return 0;
}

static int get_adapters(uint32_t room, void **out, uint32_t *count) { return list(room, out, count); }
static int get_platforms(void *of, uint32_t room, void **out, uint32_t *count) { return list(room, out, count); }
static int get_devices(void *of, int type, uint32_t room, void **out, uint32_t *count) { return list(room, out, count); }
static int fourth(void *a, void *b, void *c, void **out) { return *out = make(), 0; }
static int fifth(void *a, void *b, void *c, size_t d, void **out) { return *out = make(), 0; }
static int allocate(void *a, void *b, void *c, void *d, size_t e, void **out) { return *out = make(), 0; }
static int nothing(void) { return 0; }

static slot answer_of(const char *name)
{
    static const struct {
        const char *name;
        slot answer;
    } answers[] = {
        {"urAdapterGet", (slot)get_adapters},
        {"urPlatformGet", (slot)get_platforms},
        {"urDeviceGet", (slot)get_devices},
        {"urContextCreate", (slot)fourth},
        {"urQueueCreate", (slot)fourth},
        {"urEventCreateExp", (slot)fourth},
        {"urIPCOpenEventHandleExp", (slot)fourth},
        {"urIPCOpenPhysMemHandleExp", (slot)fifth},
        {"urUSMDeviceAlloc", (slot)allocate},
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (!strcmp(answers[i].name, name))
            return answers[i].answer;
    return nothing;
}

static int fill(const char *getter, slot *table)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        dispatch[i] = answer_of(functions[i].name);
        if (!strcmp(functions[i].getter, getter))
            table[functions[i].index] = dispatch[i];
    }
    return 0;
}

#define GETTER(name)                                                                                                   \
    int name(int version, slot *table) { return fill(#name, table); }
#include "getters.h"
