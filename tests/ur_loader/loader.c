/* As much of Unified Runtime's loader as the library needs to see, and programs that call through it. `names.h` has what
 * the loader of one build has in its tables. */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *name, *getter;
    unsigned index;
} names[] __attribute__((used)) = {
#include "names.h"
};

typedef uint32_t (*function)();
static void *library;

static function find(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, name)) {
            function table[64] = {0};
            function getter = (function)dlsym(library, names[i].getter);
            if (getter(12u, table))
                abort();
            return table[names[i].index];
        }
    fprintf(stderr, "no %s\n", name);
    abort();
}

uint32_t begin(const char *path) /* what the first table gives */
{
    function table[64];
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    function getter = (function)dlsym(library, "urGetAdapterProcAddrTable");
    uint32_t result = getter(12u, table); /* called from here: no tail call */
    return result;
}

#ifndef BARE /* what follows names functions that not every build has */

#include "call.h"

static void *adapters[8], *platform, *device, *context;

void make(void)
{
    uint32_t count;
    MUST(urAdapterGet, 8u, adapters, &count);
    MUST(urPlatformGet, adapters[0], 1u, &platform, NULL);
    MUST(urDeviceGet, platform, 1u, 1u, &device, NULL);
    MUST(urContextCreate, 1u, &device, NULL, &context);
}

static void *use(void *unused)
{
    void *queue, *event;
    int *memory;
    uint32_t pattern = 42;
    MUST(urQueueCreate, context, device, NULL, &queue);
    MUST(urUSMDeviceAlloc, context, device, NULL, NULL, (size_t)4096, (void **)&memory);
    for (int i = 0; i < 20; i++) {
        MUST(urEnqueueUSMFill, queue, memory, sizeof pattern, &pattern, (size_t)4096, 0u, NULL, &event);
        MUST(urEventWait, 1u, &event);
        MUST(urEventRelease, event);
        if (memory[7] != 42)
            abort();
    }
    uint32_t references;
    MUST(urEnqueueEventsWait, queue, 0u, NULL, &event);
    MUST(urEventRetain, event);
    MUST(urEventRetain, event);
    MUST(urEventGetInfo, event, 4u, sizeof references, &references, NULL);
    if (references != 3)
        abort();
    for (; references; references--)
        MUST(urEventRelease, event);
    if (CALL(urEventRelease, event) != 12 || CALL(urQueueFinish, event) != 3 || CALL(urEventWait, 1u, &queue) != 12)
        abort(); /* one that is stale, two of another kind */
    MUST(urUSMFree, context, memory);
    MUST(urQueueRelease, queue);
    return unused;
}

uint32_t release(void) { return CALL(urContextRelease, context); }
uint32_t finish(void *queue) { return CALL(urQueueFinish, queue); }
static void at_exit(void) { printf("at exit %u %u\n", release(), finish(NULL)), fflush(stdout); }
void release_at_exit(void) { atexit(at_exit); }

void *get_context(void) { return context; }
void *get_device(void) { return device; }

/* Any function, for Python. */
uint32_t call(const char *name, const uint64_t *a) /* as many as any function has */
{
    return find(name)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
                      a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23]);
}

/* A lock of the program's own: one thread calls under it, another wants it while it has Python's lock. */
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
static int taken, wanted;

uint32_t call_under_lock(void)
{
    enum { SIZE = 1 << 20 };
    void *queue, *other, *filled, *copied, *event;
    uint32_t status = 7, pattern = 42, ordinary = 43, result = 0, type, asked = 0, devices = 0, *memory, *seen;
    void *of = NULL;
    MUST(urQueueCreate, context, device, NULL, &queue);
    MUST(urQueueCreate, context, device, NULL, &other);
    MUST(urDeviceGetInfo, device, 0u, sizeof type, &type, NULL);
    MUST(urUSMDeviceAlloc, context, device, NULL, NULL, (size_t)2 * SIZE, (void **)&memory);
    MUST(urUSMHostAlloc, context, NULL, NULL, (size_t)2 * SIZE, (void **)&seen);
    pthread_mutex_lock(&own);
    __atomic_store_n(&taken, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&wanted, __ATOMIC_SEQ_CST))
        usleep(1000);
    usleep(20000); /* now the other has Python's lock and waits */
    result |= CALL(urEnqueueUSMFill, queue, memory, sizeof pattern, &pattern, (size_t)SIZE, 0u, NULL, &filled);
    pattern = 0; /* it was copied */
    result |= CALL(urEnqueueUSMMemcpy, other, 0, memory + SIZE / 4, memory, (size_t)SIZE, 1u, &filled, &copied);
    result |= CALL(urEnqueueEventsWaitWithBarrier, queue, 1u, &copied, NULL);
    result |= CALL(urEnqueueUSMMemcpy, queue, 0, memory, &ordinary, sizeof ordinary, 0u, NULL, NULL);
    result |= CALL(urEnqueueUSMMemcpy, queue, 0, seen, memory, (size_t)2 * SIZE, 0u, NULL, NULL);
    result |= CALL(urEnqueueEventsWaitWithBarrier, queue, 0u, NULL, &event);
    result |= CALL(urEventGetInfo, event, 3u, sizeof status, &status, NULL);
    result |= CALL(urEventRetain, event) | CALL(urEventRelease, event) | CALL(urEventRelease, filled);
    result |= CALL(urDeviceGetInfo, device, 0u, sizeof asked, &asked, NULL); /* again: what was answered is known */
    result |= CALL(urContextGetInfo, context, 0u, sizeof devices, &devices, NULL);
    result |= CALL(urQueueGetInfo, queue, 1u, sizeof of, &of, NULL);
    result |= CALL(urEventWait, 1u, &event) | CALL(urQueueFinish, queue);
    pthread_mutex_unlock(&own);
    result |= CALL(urEventWait, 1u, &event) | CALL(urEventRelease, event) | CALL(urEventRelease, copied);
    result |= CALL(urQueueFinish, queue) | CALL(urQueueRelease, queue) | CALL(urQueueRelease, other);
    if (seen[SIZE / 2 - 1] != 42 || seen[0] != 43 || status > 3 || asked != type || devices != 1 || of != device)
        abort();
    return result | CALL(urUSMFree, context, memory) | CALL(urUSMFree, context, seen);
}

int is_taken(void) { return __atomic_load_n(&taken, __ATOMIC_SEQ_CST); }

void want_lock(void)
{
    __atomic_store_n(&wanted, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&own);
    pthread_mutex_unlock(&own);
}

/* Hold a thread wherever it is, in a signal's handler. */
static int pipes[2];
static sem_t held;

static void stay(int number)
{
    char byte;
    (void)number;
    sem_post(&held);
    while (read(pipes[0], &byte, 1) != 1)
        ;
}

void hold(int thread)
{
    struct sigaction action = {.sa_handler = stay, .sa_flags = SA_RESTART};
    if (pipe(pipes) || sem_init(&held, 0, 0) || sigaction(SIGRTMIN + 3, &action, NULL) ||
        syscall(SYS_tgkill, getpid(), thread, SIGRTMIN + 3))
        abort();
    while (sem_wait(&held))
        ;
}

void let_go(void)
{
    if (write(pipes[1], "", 1) != 1)
        abort();
}

static void threads(void)
{
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, use, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    if (CALL(urKernelRelease, context) != 44)
        abort();
    MUST(urContextRelease, context);
}

/* Signal an event that is shared after more work than there is time for, and leave. */
static void owe(const char *folder)
{
    void *queue, *event, *data;
    char *memory, path[4096];
    size_t size = 1 << 28, data_size;
    struct {
        uint32_t stype;
        void *next;
        uint32_t flags;
    } shared = {0x8000, NULL, 2};
    uint32_t pattern = 42;
    MUST(urQueueCreate, context, device, NULL, &queue);
    MUST(urEventCreateExp, context, device, &shared, &event);
    MUST(urIPCGetEventHandleExp, event, &data, &data_size);
    MUST(urUSMDeviceAlloc, context, device, NULL, NULL, size, (void **)&memory);
    for (int i = 0; i < 200; i++)
        MUST(urEnqueueUSMFill, queue, memory, sizeof pattern, &pattern, size, 0u, NULL, NULL);
    MUST(urEnqueueEventsWaitWithBarrierExt, queue, NULL, 0u, NULL, &event);
    snprintf(path, sizeof path, "%s/event", folder);
    FILE *file = fopen(path, "w");
    fwrite(data, 1, data_size, file);
    fclose(file);
    puts("ready"), fflush(stdout);
    getchar();
}

static void in_child(void)
{
    pid_t child = fork();
    if (!child) {
        alarm(20);
        uint32_t given = release(), asked = finish(context);
        printf("child %u %u\n", given, asked), fflush(stdout);
        exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("status %d, parent %u\n", status, release());
}

#endif

int main(int count, char **arguments)
{
    uint32_t result = begin(arguments[1]);
    if (result) {
        printf("refused %u\n", result);
        return 3;
    }
#ifndef BARE
    make();
    if (!strcmp(arguments[2], "threads"))
        threads();
    else if (!strcmp(arguments[2], "owe"))
        owe(arguments[3]);
    else if (!strcmp(arguments[2], "fork"))
        in_child();
#endif
    puts("good");
    return count < 3;
}
