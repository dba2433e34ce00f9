/* What a call through Unified Runtime's loader costs, beside one that the loader hands on and nobody answers. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint32_t (*function)();
static void *loader;

static function find(const char *name)
{
    function found = (function)dlsym(loader, name);
    if (!found)
        exit(1);
    return found;
}

#include "call.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : *(double *)a > *(double *)b; }

#define TIME(label, times, ...)                                                                                        \
    do {                                                                                                               \
        static double took[20000];                                                                                     \
        for (int i = 0; i < times; i++) {                                                                              \
            double start = now();                                                                                      \
            __VA_ARGS__;                                                                                               \
            took[i] = now() - start;                                                                                   \
        }                                                                                                              \
        qsort(took, times, sizeof *took, compare);                                                                     \
        printf("%-44s %8.2f us median %8.2f us of 99 %%\n", label, took[times / 2], took[times * 99 / 100]);          \
    } while (0)

int main(int count, char **arguments)
{
    void *adapter, *platform, *device, *context, *queue, *event, *events[20000];
    char *memory;
    uint32_t status, pattern = 42;
    loader = dlopen(arguments[1], RTLD_NOW);
    if (!loader)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    MUST(urLoaderInit, 0u, NULL);
    MUST(urAdapterGet, 1u, &adapter, NULL);
    MUST(urPlatformGet, adapter, 1u, &platform, NULL);
    MUST(urDeviceGet, platform, 1u, 1u, &device, NULL);
    MUST(urContextCreate, 1u, &device, NULL, &context);
    MUST(urQueueCreate, context, device, NULL, &queue);
    MUST(urUSMDeviceAlloc, context, device, NULL, NULL, (size_t)1 << 20, (void **)&memory);
    MUST(urEnqueueEventsWait, queue, 0u, NULL, &event);
    MUST(urEventWait, 1u, &event);
    function nobody = find("urKernelRelease"), info = find("urEventGetInfo"), retain = find("urEventRetain");
    function release = find("urEventRelease"), wait = find("urEventWait"), fill = find("urEnqueueUSMFill");
    function barrier = find("urEnqueueEventsWaitWithBarrier"), get = find("urDeviceGetInfo"), finish = find("urQueueFinish");
    TIME("the null path: a call that nobody answers", 20000, nobody(context));
    TIME("status: urEventGetInfo", 20000, info(event, 3u, sizeof status, &status, NULL));
    TIME("urEventRetain", 20000, retain(event));
    TIME("urEventRelease", 20000, release(event));
    TIME("urEventWait, complete", 20000, wait(1u, &event));
    TIME("urEnqueueUSMFill, 4 KiB", 2000, fill(queue, memory, sizeof pattern, &pattern, (size_t)4096, 0u, NULL, &events[i]));
    TIME("urEventRelease, the last", 2000, release(events[i]));
    TIME("urEnqueueEventsWaitWithBarrier", 2000, barrier(queue, 0u, NULL, &events[i]));
    TIME("urDeviceGetInfo, asked before", 2000, get(device, 0u, sizeof status, &status, NULL));
    TIME("urEnqueueUSMFill, 1 MiB", 200, fill(queue, memory, sizeof pattern, &pattern, (size_t)1 << 20, 0u, NULL, &events[i]));
    MUST(urQueueFinish, queue);
    TIME("urQueueFinish, complete", 2000, finish(queue));
    TIME("urQueueCreate", 200, MUST(urQueueCreate, context, device, NULL, &events[i]));
    TIME("urContextCreate", 200, MUST(urContextCreate, 1u, &device, NULL, &events[i]));
    return 0;
}
