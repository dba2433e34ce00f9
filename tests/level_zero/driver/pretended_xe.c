/* LD_PRELOAD: a pretended Linux "xe" kernel driver with one or more Battlemage GPUs, enough for Intel's own Level Zero
 * driver to start, allocate, share, map and run. Buffer objects are memfds. Each exec queue is a thread that walks the
 * batches submitted to it and performs copies, fills of the copy engine, stores, atomics and semaphore waits. Kernels
 * do not run: what the driver does by a kernel leaves its memory as it was.
 *
 * Environment: PRETENDED_XE_DEVICES=n (default: 1), PRETENDED_XE_TRACE=1 (ioctls) or 2 (commands, too), to stderr. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <drm/drm.h>
#include <drm/xe_drm.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FDS = 65536, BUFFERS = 65536, QUEUES = 4096, FENCES = 8, FIRST_NODE = 128 };
#define BUFFER "dri/renderD128" /* as what is mapped of such a device is called */
#define ADDRESS(a) ((a)&UINT64_C(0xffffffffffff)) /* 48 bits */
#define TRACE(level, ...)                                                                                              \
    do {                                                                                                               \
        if (trace >= (level))                                                                                          \
            fprintf(stderr, "xe: " __VA_ARGS__);                                                                       \
    } while (0)

typedef struct { /* a buffer object; its number is its handle */
    int fd; /* of the keeper */
    int users; /* the handle and the bindings; the content goes with the last of them */
    uint64_t size; /* 0: the handle is closed */
    uint64_t mapped;
    ino_t inode;
    char *content;
} buffer;

typedef struct binding { /* addresses of a VM, where content can be reached */
    struct binding *next;
    uint32_t vm;
    uint64_t address, size;
    char *content;
    uint32_t object; /* 0: the program's own pages */
} binding;

typedef struct job {
    struct job *next;
    uint64_t batch;
    uint32_t fences;
    struct drm_xe_sync fence[FENCES];
} job;

typedef struct {
    uint32_t vm;
    job *first, **last;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t registers[128]; /* the general purpose registers, which commands load and store */
} exec_queue;

static int (*real_open)(const char *, int, ...);
static int (*real_ioctl)(int, unsigned long, ...);
static int (*real_close)(int);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int trace;
static bool is_node[FDS]; /* fds of /dev/dri/renderD… */
static buffer buffers[BUFFERS];
static exec_queue queues[QUEUES];
static uint32_t last_buffer, last_vm, last_queue;
static binding *bindings;
static pthread_mutex_t ioctls = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t bound = PTHREAD_RWLOCK_INITIALIZER; /* of bindings */

static pid_t self;

static void in_child(void) /* not after vfork, whose child has this memory */
{
    self = getpid();
}

__attribute__((constructor)) static void find_real(void)
{
    self = getpid();
    pthread_atfork(NULL, NULL, in_child);
    real_open = dlsym(RTLD_NEXT, "open");
    real_ioctl = dlsym(RTLD_NEXT, "ioctl");
    real_close = dlsym(RTLD_NEXT, "close");
    real_mmap = dlsym(RTLD_NEXT, "mmap");
    trace = getenv("PRETENDED_XE_TRACE") ? atoi(getenv("PRETENDED_XE_TRACE")) : 0;
}

static uint64_t now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int invalid(void)
{
    errno = EINVAL;
    return -1;
}

/* --- the command streamer ----------------------------------------------------------------------------------------- */

static void *reach(uint32_t vm, uint64_t address, uint64_t size) /* NULL where nothing is bound */
{
    void *found = NULL;
    address = ADDRESS(address);
    pthread_rwlock_rdlock(&bound);
    for (binding *b = bindings; b && !found; b = b->next)
        if (b->vm == vm && address >= b->address && address + size <= b->address + b->size)
            found = b->content + (address - b->address);
    pthread_rwlock_unlock(&bound);
    if (!found)
        TRACE(1, "nothing at %lx in VM %u\n", (long)address, vm);
    return found;
}

/* As a GPU's, an access to what is not mapped harms the work that does it, and not the process. */
static bool fetch(void *to, const void *from, uint64_t size)
{
    struct iovec target = {to, size}, source = {(void *)(uintptr_t)from, size};
    ssize_t got = process_vm_readv(getpid(), &target, 1, &source, 1, 0);
    if (got < 0 && errno != EFAULT) { /* not allowed here */
        memmove(to, from, size);
        return true;
    }
    if (got != (ssize_t)size)
        TRACE(1, "%p, +%lx is not mapped\n", from, (long)size);
    return got == (ssize_t)size;
}

static bool mapped(const char *at, uint64_t size)
{
    char byte;
    return !size || (fetch(&byte, at, 1) && fetch(&byte, at + size - 1, 1));
}

static uint64_t wide(const uint32_t *at)
{
    return at[0] | (uint64_t)at[1] << 32;
}

static uint32_t *general(exec_queue *q, uint32_t number) /* a general purpose register, or NULL for all others */
{
    uint32_t offset = number & 0xfff; /* in the registers of whichever engine */
    return offset >= 0x600 && offset < 0x800 ? &q->registers[(offset - 0x600) / 4] : NULL;
}

static void store(exec_queue *q, uint64_t address, uint64_t value, bool qword)
{
    void *to = reach(q->vm, address & ~UINT64_C(3), qword ? 8 : 4);
    if (!to || !mapped(to, 4))
        return;
    if (qword)
        *(_Atomic uint64_t *)to = value;
    else
        *(_Atomic uint32_t *)to = (uint32_t)value;
}

static void add(exec_queue *q, uint64_t address, uint64_t value, bool qword)
{
    void *to = reach(q->vm, address & ~UINT64_C(3), qword ? 8 : 4);
    if (!to || !mapped(to, 4))
        return;
    if (qword)
        *(_Atomic uint64_t *)to += value;
    else
        *(_Atomic uint32_t *)to += (uint32_t)value;
}

static bool compares(uint32_t operation, uint32_t is, uint32_t with)
{
    switch (operation) {
    case 0:
        return is > with;
    case 1:
        return is >= with;
    case 2:
        return is < with;
    case 3:
        return is <= with;
    case 4:
        return is == with;
    default:
        return is != with;
    }
}

static void wait_semaphore(exec_queue *q, const uint32_t *command) /* 32 bits, as this hardware's */
{
    const void *at = reach(q->vm, wide(command + 2) & ~UINT64_C(3), 4);
    uint32_t is;
    for (int tries = 0; at && fetch(&is, at, 4) && !compares(command[0] >> 12 & 7, is, command[1]); ++tries)
        usleep(tries < 1000 ? 5 : 50);
}

enum { /* of MI commands */
    END = 0x0a,
    SEMAPHORE = 0x1c,
    STORE_DATA = 0x20,
    LOAD_REGISTER = 0x22,
    STORE_REGISTER = 0x24,
    FLUSH = 0x26,
    LOAD_FROM_MEMORY = 0x29,
    ATOMIC = 0x2f,
    START = 0x31
};

static void memory_interface(exec_queue *q, const uint32_t *command, uint32_t length)
{
    uint32_t word = command[0];
    uint32_t *kept;
    switch (word >> 23 & 63) {
    case STORE_DATA:
        store(q, wide(command + 1), wide(command + 3), word >> 21 & 1);
        break;
    case LOAD_REGISTER:
        for (uint32_t i = 1; i + 1 < length; i += 2)
            if ((kept = general(q, command[i])))
                *kept = command[i + 1];
        break;
    case LOAD_FROM_MEMORY:
        if ((kept = general(q, command[1]))) {
            _Atomic uint32_t *from = reach(q->vm, wide(command + 2), 4);
            if (from)
                *kept = *from;
        }
        break;
    case STORE_REGISTER: /* any other one is a clock */
        kept = general(q, command[1]);
        store(q, wide(command + 2), kept ? *kept : (uint32_t)(now(CLOCK_MONOTONIC_RAW) / 52), false);
        break;
    case FLUSH: /* may store, once all before it is done */
        if ((word >> 14 & 3) == 1)
            store(q, wide(command + 1) & ~UINT64_C(7), wide(command + 3), true);
        break;
    case ATOMIC: {
        uint32_t operation = word >> 8 & 0xf; /* with or without an answer */
        bool qword = word >> 19 & 3;
        if (operation == 0x5)
            add(q, wide(command + 1), 1, qword);
        else if (operation == 0x7)
            add(q, wide(command + 1), qword ? wide(command + 3) : command[3], qword);
        else
            TRACE(1, "atomic operation %x is not known\n", operation);
        break;
    }
    case SEMAPHORE:
        wait_semaphore(q, command);
        break;
    default: /* what has no effect here */
        break;
    }
}

enum { FAST_COLOUR = 0x44, BLOCK_COPY = 0x41, MEMORY_COPY = 0x5a, MEMORY_SET = 0x5b }; /* of the copy engine */

static void copy_row(exec_queue *q, uint64_t to, uint64_t from, uint64_t size)
{
    char *target = reach(q->vm, to, size), *source = reach(q->vm, from, size);
    if (target && source)
        fetch(target, source, size);
}

static void copy_engine(exec_queue *q, const uint32_t *c)
{
    const uint32_t low = 0x3ffff;
    switch (c[0] >> 22 & 0x7f) {
    case MEMORY_COPY: {
        uint64_t width = (uint64_t)(c[1] & low) + 1, height = (uint64_t)(c[2] & low) + 1;
        if (!(c[0] >> 17 & 1)) /* linear, in bytes or in units of 256 */
            copy_row(q, wide(c + 7), wide(c + 5), width * (c[0] >> 19 & 1 ? 256 : 1));
        else
            for (uint64_t y = 0; y < height; ++y)
                copy_row(q, wide(c + 7) + y * ((c[4] & low) + 1), wide(c + 5) + y * ((c[3] & low) + 1), width);
        break;
    }
    case MEMORY_SET: {
        uint64_t width = (uint64_t)(c[1] & low) + 1, height = c[0] >> 17 & 1 ? (uint64_t)(c[2] & low) + 1 : 1;
        for (uint64_t y = 0; y < height; ++y) {
            void *target = reach(q->vm, wide(c + 4) + y * ((c[3] & low) + 1), width);
            if (target && mapped(target, width))
                memset(target, (int)(c[6] >> 24), width);
        }
        break;
    }
    case BLOCK_COPY: /* linear surfaces: rows from y1 to y2, columns from x1 to x2 */
    case FAST_COLOUR: {
        uint64_t pixel = UINT64_C(1) << (c[0] >> 19 & 7), pitch = (c[1] & low) + 1;
        uint32_t x1 = c[2] & 0xffff, y1 = c[2] >> 16, x2 = c[3] & 0xffff, y2 = c[3] >> 16;
        for (uint32_t y = y1; y < y2; ++y) {
            uint64_t to = wide(c + 4) + y * pitch + x1 * pixel, size = (x2 - x1) * pixel;
            if ((c[0] >> 22 & 0x7f) == BLOCK_COPY) {
                uint32_t source_x = c[7] & 0xffff, source_y = (c[7] >> 16) + y - y1;
                copy_row(q, to, wide(c + 9) + source_y * (uint64_t)((c[8] & low) + 1) + source_x * pixel, size);
                continue;
            }
            char *target = reach(q->vm, to, size);
            for (uint64_t x = 0; target && x < size; x += pixel)
                memcpy(target + x, &c[7], pixel < 16 ? pixel : 16);
        }
        break;
    }
    default:
        TRACE(1, "copy engine: command %08x is not known\n", c[0]);
    }
}

static void perform(exec_queue *q, uint64_t at) /* a batch, with those that it calls */
{
    uint64_t callers[8];
    int depth = 0;
    for (;;) {
        const uint32_t *c = reach(q->vm, at, 4);
        if (!c)
            return;
        uint32_t word = c[0], client = word >> 29, operation = word >> 23 & 63, length = (word & 0xff) + 2;
        TRACE(2, "%lx: %08x\n", (long)at, word);
        if (client == 0 && operation == END) {
            if (!depth)
                return;
            at = callers[--depth];
            continue;
        }
        if (client == 0 && operation == START) {
            if (word >> 22 & 1 && depth < 8)
                callers[depth++] = at + 12;
            at = wide(c + 1) & ~UINT64_C(3);
            continue;
        }
        if (client == 0) {
            if (operation < 16)
                length = 1;
            memory_interface(q, c, length);
        } else if (client == 2)
            copy_engine(q, c);
        else if (client == 3) {
            if (word >> 16 == 0x7a00 && (c[1] >> 14 & 3) == 1) /* PIPE_CONTROL that stores */
                store(q, wide(c + 2) & ~UINT64_C(7), wide(c + 4), true);
            else if (word >> 16 == 0x7202 || word >> 16 == 0x7208)
                TRACE(1, "a kernel is not run\n");
            if (word >> 16 == 0x6904) /* PIPELINE_SELECT has no length */
                length = 1;
        } else {
            TRACE(1, "command %08x at %lx is not known\n", word, (long)at);
            return;
        }
        at += 4ull * length;
    }
}

static void signal_fences(uint32_t vm, const struct drm_xe_sync *fence, uint32_t number, bool of_queue)
{
    for (uint32_t i = 0; i < number; ++i) {
        if (fence[i].type != DRM_XE_SYNC_TYPE_USER_FENCE || !(fence[i].flags & DRM_XE_SYNC_FLAG_SIGNAL))
            continue;
        /* Of a queue it is an address of the VM, of a binding one of the process. */
        _Atomic uint64_t *at = of_queue ? reach(vm, fence[i].addr, 8) : NULL;
        if (!at)
            at = (_Atomic uint64_t *)(uintptr_t)fence[i].addr;
        *at = fence[i].timeline_value;
    }
}

static void *work(void *argument)
{
    exec_queue *q = argument;
    for (;;) {
        pthread_mutex_lock(&q->mutex);
        while (!q->first)
            pthread_cond_wait(&q->changed, &q->mutex);
        job *j = q->first;
        pthread_mutex_unlock(&q->mutex);
        perform(q, j->batch);
        signal_fences(q->vm, j->fence, j->fences, true);
        pthread_mutex_lock(&q->mutex);
        q->first = j->next;
        if (!q->first)
            q->last = &q->first;
        pthread_mutex_unlock(&q->mutex);
        free(j);
    }
    return NULL;
}

/* --- what the device says of itself ------------------------------------------------------------------------------- */

static int answer(struct drm_xe_device_query *query, const void *data, size_t size)
{
    if (!query->size) {
        query->size = (uint32_t)size;
        return 0;
    }
    if (query->size < size)
        return invalid();
    memcpy((void *)(uintptr_t)query->data, data, size);
    return 0;
}

static int engines(struct drm_xe_device_query *query)
{
    static const uint16_t classes[] = {DRM_XE_ENGINE_CLASS_RENDER, DRM_XE_ENGINE_CLASS_COPY,
                                       DRM_XE_ENGINE_CLASS_COMPUTE};
    char data[sizeof(struct drm_xe_query_engines) + 3 * sizeof(struct drm_xe_engine)] = {0};
    struct drm_xe_query_engines *said = (void *)data;
    said->num_engines = 3;
    for (int i = 0; i < 3; ++i)
        said->engines[i].instance.engine_class = classes[i];
    return answer(query, data, sizeof data);
}

static int memory_regions(struct drm_xe_device_query *query)
{
    char data[sizeof(struct drm_xe_query_mem_regions) + 2 * sizeof(struct drm_xe_mem_region)] = {0};
    struct drm_xe_query_mem_regions *said = (void *)data;
    said->num_mem_regions = 2;
    for (uint16_t i = 0; i < 2; ++i) {
        struct drm_xe_mem_region *region = &said->mem_regions[i];
        region->mem_class = i ? DRM_XE_MEM_REGION_CLASS_VRAM : DRM_XE_MEM_REGION_CLASS_SYSMEM;
        region->instance = i;
        region->min_page_size = i ? 65536 : 4096;
        region->total_size = UINT64_C(8) << 30;
        region->cpu_visible_size = i ? region->total_size : 0;
    }
    return answer(query, data, sizeof data);
}

static int graphics_tiles(struct drm_xe_device_query *query)
{
    char data[sizeof(struct drm_xe_query_gt_list) + sizeof(struct drm_xe_gt)] = {0};
    struct drm_xe_query_gt_list *said = (void *)data;
    said->num_gt = 1;
    said->gt_list[0].reference_clock = 19200000;
    said->gt_list[0].near_mem_regions = 2;
    said->gt_list[0].far_mem_regions = 1;
    said->gt_list[0].ip_ver_major = 20;
    said->gt_list[0].ip_ver_minor = 1;
    said->gt_list[0].ip_ver_rev = 4;
    return answer(query, data, sizeof data);
}

static int topology(struct drm_xe_device_query *query)
{
    static const struct __attribute__((packed)) {
        uint16_t tile, type;
        uint32_t bytes;
        uint64_t mask;
    } said[] = {{0, DRM_XE_TOPO_DSS_GEOMETRY, 8, 0xfffff},
                {0, DRM_XE_TOPO_DSS_COMPUTE, 8, 0xfffff},
                {0, DRM_XE_TOPO_L3_BANK, 8, 0xff},
                {0, DRM_XE_TOPO_SIMD16_EU_PER_DSS, 8, 0xff}};
    return answer(query, said, sizeof said);
}

static int device_query(struct drm_xe_device_query *query)
{
    switch (query->query) {
    case DRM_XE_DEVICE_QUERY_CONFIG: {
        /* how many; device and revision; flags; the least alignment; bits of addresses; the highest priority */
        static const uint64_t said[] = {5, 0xe20b, 1 | 2 | 8, 65536, 48, 2};
        return answer(query, said, sizeof said);
    }
    case DRM_XE_DEVICE_QUERY_ENGINES:
        return engines(query);
    case DRM_XE_DEVICE_QUERY_MEM_REGIONS:
        return memory_regions(query);
    case DRM_XE_DEVICE_QUERY_GT_LIST:
        return graphics_tiles(query);
    case DRM_XE_DEVICE_QUERY_GT_TOPOLOGY:
        return topology(query);
    case DRM_XE_DEVICE_QUERY_HWCONFIG: /* none: the driver has a table of its own */
        return 0;
    case DRM_XE_DEVICE_QUERY_ENGINE_CYCLES: {
        struct drm_xe_query_engine_cycles said = {0};
        said.cpu_timestamp = now(CLOCK_MONOTONIC_RAW);
        said.engine_cycles = said.cpu_timestamp / 52;
        said.width = 36;
        said.cpu_delta = 1;
        return answer(query, &said, sizeof said);
    }
    default:
        return invalid();
    }
}

/* --- buffer objects and bindings ---------------------------------------------------------------------------------- */

/* A handle of the kernel's is no file descriptor of the process. So those that stand for handles lie in the table of a
 * thread that shares its table with no other, where they are reached by their links. */
static struct {
    pid_t thread; /* 0: not started */
    int argument, result; /* a descriptor of `caller` to take, or of the keeper to close */
    pid_t caller; /* 0: close */
    bool asked, busy;
    pthread_cond_t changed;
} keeper = {.changed = PTHREAD_COND_INITIALIZER};

static int open_link(pid_t thread, int fd) /* another descriptor of it, with flags of its own */
{
    char link[64];
    snprintf(link, sizeof link, "/proc/%d/task/%d/fd/%d", self, thread, fd);
    return real_open(link, O_RDWR | O_CLOEXEC);
}

static void *keep(void *unused)
{
    close_range(0, ~0u, CLOSE_RANGE_UNSHARE);
    pthread_mutex_lock(&ioctls);
    keeper.thread = gettid();
    for (;;) {
        pthread_cond_broadcast(&keeper.changed);
        while (!keeper.asked)
            pthread_cond_wait(&keeper.changed, &ioctls);
        keeper.result =
            keeper.caller ? open_link(keeper.caller, keeper.argument) : real_close(keeper.argument);
        keeper.asked = false;
    }
    return unused;
}

static int ask_keeper(pid_t caller, int fd) /* call it with `ioctls` locked, which it gives up meanwhile */
{
    pthread_t thread;
    static bool started;
    if (!started) {
        started = true;
        pthread_create(&thread, NULL, keep, NULL);
        pthread_detach(thread);
    }
    while (!keeper.thread || keeper.asked || keeper.busy)
        pthread_cond_wait(&keeper.changed, &ioctls);
    keeper.busy = keeper.asked = true;
    keeper.caller = caller;
    keeper.argument = fd;
    pthread_cond_broadcast(&keeper.changed);
    while (keeper.asked)
        pthread_cond_wait(&keeper.changed, &ioctls);
    keeper.busy = false;
    pthread_cond_broadcast(&keeper.changed);
    return keeper.result;
}

static uint32_t enter_buffer(int fd, uint64_t size) /* takes the descriptor; 0 if it cannot be mapped */
{
    struct stat status;
    void *content = MAP_FAILED;
    int kept = -1;
    if (fd >= 0 && last_buffer + 1 < BUFFERS && !fstat(fd, &status))
        content = real_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (content != MAP_FAILED && (kept = ask_keeper(gettid(), fd)) < 0)
        munmap(content, size);
    if (fd >= 0)
        real_close(fd);
    if (kept < 0) {
        errno = ENOMEM;
        return 0;
    }
    buffers[++last_buffer] = (buffer){kept, 1, size, size, status.st_ino, content};
    return last_buffer;
}

static int create_buffer(struct drm_xe_gem_create *request)
{
    int fd = memfd_create(BUFFER, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)request->size))
        return -1;
    request->handle = enter_buffer(fd, request->size);
    return request->handle ? 0 : -1;
}

static void leave_buffer(uint32_t handle) /* call it with `bound` locked */
{
    buffer *b = &buffers[handle];
    if (--b->users)
        return;
    munmap(b->content, b->mapped);
    b->content = NULL;
}

static void close_buffer(uint32_t handle)
{
    buffer *b = &buffers[handle];
    if (!b->size)
        return;
    int kept = b->fd;
    b->fd = -1;
    b->size = 0;
    ask_keeper(0, kept);
    pthread_rwlock_wrlock(&bound);
    leave_buffer(handle);
    pthread_rwlock_unlock(&bound);
}

static int import_buffer(struct drm_prime_handle *request)
{
    struct stat status;
    char name[64] = "", link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", request->fd);
    if (readlink(link, name, sizeof name - 1) < 0 || fstat(request->fd, &status))
        return invalid();
    if (strncmp(name, "/memfd:" BUFFER, strlen("/memfd:" BUFFER))) /* not of this kernel driver */
        return invalid();
    for (uint32_t i = 1; i <= last_buffer; ++i) /* one that this process has keeps its handle */
        if (buffers[i].size && buffers[i].inode == status.st_ino) {
            request->handle = i;
            return 0;
        }
    request->handle = enter_buffer(open_link(gettid(), request->fd), (uint64_t)status.st_size);
    return request->handle ? 0 : -1;
}

static void bind_range(uint32_t vm, uint64_t address, uint64_t size, char *content, uint32_t object)
{
    binding *b = malloc(sizeof *b);
    pthread_rwlock_wrlock(&bound);
    *b = (binding){bindings, vm, address, size, content, object};
    bindings = b;
    if (object)
        ++buffers[object].users;
    pthread_rwlock_unlock(&bound);
}

static void unbind_range(uint32_t vm, uint64_t address, uint64_t size)
{
    pthread_rwlock_wrlock(&bound);
    for (binding **at = &bindings; *at;) {
        binding *b = *at;
        if (b->vm != vm || b->address < address || b->address + b->size > address + size) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        if (b->object)
            leave_buffer(b->object);
        free(b);
    }
    pthread_rwlock_unlock(&bound);
}

static int bind(uint32_t vm, const struct drm_xe_vm_bind_op *request)
{
    uint64_t address = ADDRESS(request->addr);
    char *pages = (char *)(uintptr_t)request->userptr;
    TRACE(1, "bind: VM %u, operation %u, object %u, %lx, +%lx\n", vm, request->op, request->obj, (long)address,
          (long)request->range);
    switch (request->op) {
    case DRM_XE_VM_BIND_OP_MAP:
        if (!(request->flags & (DRM_XE_VM_BIND_FLAG_NULL | DRM_XE_VM_BIND_FLAG_CPU_ADDR_MIRROR)))
            bind_range(vm, address, request->range, buffers[request->obj].content + request->obj_offset, request->obj);
        return 0;
    case DRM_XE_VM_BIND_OP_MAP_USERPTR:
        if (!mapped(pages, request->range)) {
            errno = EFAULT;
            return -1;
        }
        bind_range(vm, address, request->range, pages, 0);
        return 0;
    case DRM_XE_VM_BIND_OP_UNMAP:
        unbind_range(vm, address, request->range);
        return 0;
    default:
        return 0;
    }
}

static int bind_all(struct drm_xe_vm_bind *request)
{
    const struct drm_xe_vm_bind_op *several = (const void *)(uintptr_t)request->vector_of_binds;
    for (uint32_t i = 0; i < request->num_binds; ++i)
        if (bind(request->vm_id, request->num_binds == 1 ? &request->bind : &several[i]))
            return -1;
    signal_fences(request->vm_id, (const void *)(uintptr_t)request->syncs, request->num_syncs, false);
    return 0;
}

/* --- queues ------------------------------------------------------------------------------------------------------- */

static int create_queue(struct drm_xe_exec_queue_create *request)
{
    if (last_queue + 1 >= QUEUES)
        return invalid();
    request->exec_queue_id = ++last_queue;
    queues[last_queue].vm = request->vm_id;
    return 0;
}

static int submit(const struct drm_xe_exec *request)
{
    exec_queue *q = &queues[request->exec_queue_id];
    job *j = calloc(1, sizeof *j);
    j->batch = request->address;
    j->fences = request->num_syncs < FENCES ? request->num_syncs : FENCES;
    memcpy(j->fence, (const void *)(uintptr_t)request->syncs, j->fences * sizeof *j->fence);
    if (!q->started) {
        pthread_t thread;
        q->started = true;
        q->last = &q->first;
        pthread_mutex_init(&q->mutex, NULL);
        pthread_cond_init(&q->changed, NULL);
        pthread_create(&thread, NULL, work, q);
        pthread_detach(thread);
    }
    pthread_mutex_lock(&q->mutex);
    *q->last = j;
    q->last = &j->next;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->mutex);
    return 0;
}

static bool fence_reached(const struct drm_xe_wait_user_fence *wait)
{
    uint64_t is = *(_Atomic uint64_t *)(uintptr_t)wait->addr & wait->mask, value = wait->value & wait->mask;
    switch (wait->op) {
    case DRM_XE_UFENCE_WAIT_OP_EQ:
        return is == value;
    case DRM_XE_UFENCE_WAIT_OP_NEQ:
        return is != value;
    case DRM_XE_UFENCE_WAIT_OP_GT:
        return is > value;
    case DRM_XE_UFENCE_WAIT_OP_GTE:
        return is >= value;
    case DRM_XE_UFENCE_WAIT_OP_LT:
        return is < value;
    default:
        return is <= value;
    }
}

static int wait_fence(const struct drm_xe_wait_user_fence *wait)
{
    uint64_t began = now(CLOCK_MONOTONIC), limit = wait->timeout < 0 ? INT64_MAX : (uint64_t)wait->timeout;
    if (wait->flags & DRM_XE_UFENCE_WAIT_FLAG_ABSTIME)
        limit = wait->timeout < 0 || limit < began ? 0 : limit - began;
    while (!fence_reached(wait)) {
        if (now(CLOCK_MONOTONIC) - began > limit) {
            errno = ETIME;
            return -1;
        }
        usleep(20);
    }
    return 0;
}

/* --- system calls ------------------------------------------------------------------------------------------------- */

static int general_ioctl(unsigned number, void *argument) /* those that all graphics drivers have */
{
    switch (_IOC_NR(number)) {
    case _IOC_NR(DRM_IOCTL_VERSION): {
        struct drm_version *version = argument;
        version->version_major = 1;
        if (version->name && version->name_len)
            memcpy(version->name, "xe", version->name_len < 3 ? version->name_len : 3);
        version->name_len = 2;
        return 0;
    }
    case _IOC_NR(DRM_IOCTL_GEM_CLOSE):
        close_buffer(((struct drm_gem_close *)argument)->handle);
        return 0;
    case _IOC_NR(DRM_IOCTL_PRIME_HANDLE_TO_FD): {
        struct drm_prime_handle *prime = argument;
        prime->fd = open_link(keeper.thread, buffers[prime->handle].fd);
        return prime->fd < 0 ? -1 : 0;
    }
    case _IOC_NR(DRM_IOCTL_PRIME_FD_TO_HANDLE):
        return import_buffer(argument);
    case _IOC_NR(DRM_IOCTL_GET_CAP):
        ((struct drm_get_cap *)argument)->value = 1;
        return 0;
    default:
        return invalid();
    }
}

static int xe_ioctl(unsigned number, void *argument)
{
    switch (number) {
    case DRM_XE_DEVICE_QUERY:
        return device_query(argument);
    case DRM_XE_GEM_CREATE:
        return create_buffer(argument);
    case DRM_XE_GEM_MMAP_OFFSET: { /* mmap below takes the handle out of it again */
        struct drm_xe_gem_mmap_offset *request = argument;
        request->offset = (uint64_t)request->handle << 32;
        return 0;
    }
    case DRM_XE_VM_CREATE: {
        struct drm_xe_vm_create *request = argument;
        if (request->flags & DRM_XE_VM_CREATE_FLAG_FAULT_MODE)
            return invalid();
        request->vm_id = ++last_vm;
        return 0;
    }
    case DRM_XE_VM_BIND:
        return bind_all(argument);
    case DRM_XE_EXEC_QUEUE_CREATE:
        return create_queue(argument);
    case DRM_XE_EXEC_QUEUE_GET_PROPERTY: /* whether it was reset: never */
        ((struct drm_xe_exec_queue_get_property *)argument)->value = 0;
        return 0;
    case DRM_XE_EXEC:
        return submit(argument);
    case DRM_XE_VM_DESTROY:
    case DRM_XE_EXEC_QUEUE_DESTROY:
    case DRM_XE_EXEC_QUEUE_SET_PROPERTY:
    case DRM_XE_MADVISE:
        return 0;
    default:
        TRACE(1, "ioctl %x is refused\n", number);
        return invalid();
    }
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (!real_ioctl)
        find_real();
    if (fd < 0 || fd >= FDS || !is_node[fd])
        return real_ioctl(fd, request, argument);
    unsigned number = _IOC_NR(request);
    TRACE(1, "ioctl %x\n", number);
    if (number == DRM_COMMAND_BASE + DRM_XE_WAIT_USER_FENCE) /* without the lock: others go on meanwhile */
        return wait_fence(argument);
    pthread_mutex_lock(&ioctls);
    int result = number >= DRM_COMMAND_BASE && number < DRM_COMMAND_END
                     ? xe_ioctl(number - DRM_COMMAND_BASE, argument)
                     : general_ioctl(number, argument);
    pthread_mutex_unlock(&ioctls);
    return result;
}

int open(const char *path, int flags, ...)
{
    static const char node[] = "/dev/dri/renderD";
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    if (!real_open)
        find_real();
    if (strncmp(path, node, sizeof node - 1))
        return real_open(path, flags, mode);
    const char *devices = getenv("PRETENDED_XE_DEVICES");
    if (atoi(path + sizeof node - 1) >= FIRST_NODE + (devices ? atoi(devices) : 1)) {
        errno = ENOENT;
        return -1;
    }
    int fd = memfd_create("xe node", MFD_CLOEXEC);
    if (fd >= 0 && fd < FDS)
        is_node[fd] = true;
    return fd;
}

int open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return open(path, flags, mode);
}

int close(int fd)
{
    if (!real_close)
        find_real();
    if (fd >= 0 && fd < FDS && getpid() == self) /* the child of a vfork has this memory, but descriptors of its own */
        is_node[fd] = false;
    return real_close(fd);
}

void *mmap(void *wanted, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (!real_mmap)
        find_real();
    if (fd < 0 || fd >= FDS || !is_node[fd])
        return real_mmap(wanted, size, protection, flags, fd, offset);
    int opened = open_link(keeper.thread, buffers[(uint64_t)offset >> 32].fd);
    void *content = real_mmap(wanted, size, protection, flags, opened, offset & 0xffffffff);
    if (opened >= 0)
        real_close(opened);
    return content;
}

void *mmap64(void *wanted, size_t size, int protection, int flags, int fd, off_t offset)
{
    return mmap(wanted, size, protection, flags, fd, offset);
}
