/* CUDA's driver functions without hardware, as far as forward_hip.c calls them: memory is memfds of this process, streams
 * are those of the software stream device (src/native/mock/software_streams.c). Two devices. Other processes open
 * handles by /proc/PID/fd. */
#define _GNU_SOURCE
#include "cu_table.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEVICES = 2, GRANULE = 1 << 16 };
static const size_t most = (size_t)8 << 30;

typedef struct CUstream_st ss_stream;
int ss_stream_create(int, ss_stream *, ss_stream **), ss_stream_destroy(ss_stream *), ss_stream_query(ss_stream *);
int ss_captured(ss_stream *, int *), ss_store64(ss_stream *, uint64_t, uint64_t), ss_wait64_geq(ss_stream *, uint64_t, uint64_t);
int ss_host(ss_stream *, uint64_t, uint64_t), ss_copy(ss_stream *, uint64_t, uint64_t, uint64_t);
int ss_fill(ss_stream *, uint64_t, int, uint64_t), ss_device_synchronize(int);
void ss_exit(void);

struct CUctx_st { int device; };
static struct CUctx_st contexts[DEVICES] = {{0}, {1}};
static __thread int current;

typedef struct memory { /* the pages behind a span; mapped memory and its handles share them */
    int refs, fd;
    size_t nbytes;
} memory;

enum kind { MALLOC, MANAGED, PINNED, REGISTERED, IMPORTED, RESERVED, MAPPED };
typedef struct span {
    struct span *next;
    uint64_t start, nbytes;
    enum kind kind;
    int device, id, opens;
    ino_t inode;
    memory *memory;
} span;

typedef struct { uint64_t recorded, done; } counter; /* an event: how often it was recorded, and has come */
struct CUevent_st { counter *counter; int fd; };
typedef struct { char magic[8]; int pid, fd; uint64_t inode, nbytes; } ipc_handle;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* all that follows */
static span *spans;
static int next_id = 1;
static ss_stream *defaults[DEVICES];

__attribute__((destructor)) static void stop(void) { ss_exit(); }

/* --- spans --------------------------------------------------------------------------------------------------------------- */

static span *find(uint64_t at, int reserved)
{
    for (span *each = spans; each; each = each->next)
        if ((each->kind == RESERVED) == reserved && each->start <= at && at < each->start + each->nbytes)
            return each;
    return NULL;
}

static span *starting(uint64_t at, int kinds)
{
    for (span *each = spans; each; each = each->next)
        if (each->start == at && kinds & 1 << each->kind)
            return each;
    return NULL;
}

static span *add(uint64_t start, size_t nbytes, enum kind kind, memory *of)
{
    span *made = calloc(1, sizeof *made);
    *made = (span){spans, start, nbytes, kind, current, next_id++, 1, 0, of};
    return spans = made;
}

static void drop(span *gone)
{
    span **place = &spans;
    while (*place != gone)
        place = &(*place)->next;
    *place = gone->next, free(gone);
}

static memory *create(size_t nbytes)
{
    int fd = nbytes && nbytes <= most ? memfd_create("soft-cuda", MFD_CLOEXEC) : -1;
    if (fd < 0 || ftruncate(fd, (off_t)nbytes))
        return fd < 0 ? NULL : (close(fd), NULL);
    memory *made = malloc(sizeof *made);
    *made = (memory){1, fd, nbytes};
    return made;
}

static void let_go(memory *of)
{
    if (of && --of->refs == 0)
        close(of->fd), free(of);
}

static CUresult locked(CUresult code) { return pthread_mutex_unlock(&mu), code; }
#define LOCK pthread_mutex_lock(&mu)

/* --- devices ------------------------------------------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags) { return flags ? CU_INVALID_VALUE : CU_OK; }
CUresult cuDeviceGetCount(int *count) { return *count = DEVICES, CU_OK; }
CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    return snprintf(name, (size_t)length, "Software device %d", device), CU_OK;
}
CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device) /* the same in all processes of this boot */
{
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file && fgets(text, sizeof text, file) == NULL)
        *text = 0;
    if (file)
        fclose(file);
    memcpy(uuid, text + 20, 16), ((char *)uuid)[15] = (char)('0' + device);
    return CU_OK;
}
CUresult cuDeviceGetPCIBusId(char *name, int length, CUdevice device)
{
    return snprintf(name, (size_t)length, "0000:%02X:00.0", 0xA0 + device), CU_OK;
}
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    switch (attribute) {
    case 18: case 32: *value = 0; break; /* integrated, ECC */
    case 13: case 36: *value = 1000000; break;
    case 10: *value = 64; break;
    case 1: case 2: case 3: case 5: case 6: case 7: *value = 1024; break;
    case 8: case 9: case 12: case 38: *value = 65536; break;
    default: *value = 1;
    }
    return device < DEVICES ? CU_OK : CU_INVALID_DEVICE;
}
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) { return *can = device != peer, CU_OK; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    return *context = &contexts[device], CU_OK;
}
CUresult cuCtxSetCurrent(CUcontext context) { return current = context->device, CU_OK; }
CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) { return *unused = *total = most, CU_OK; }
CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    static __thread int before;
    int given = *mode;
    return *mode = before, before = given, CU_OK;
}

/* --- memory -------------------------------------------------------------------------------------------------------------- */

static CUresult allocate(uint64_t *at, size_t nbytes, enum kind kind)
{
    memory *of = create((nbytes + GRANULE - 1) / GRANULE * GRANULE);
    void *found = of ? mmap(NULL, of->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, of->fd, 0) : MAP_FAILED;
    if (found == MAP_FAILED)
        return let_go(of), CU_OUT_OF_MEMORY;
    LOCK;
    *at = add((uintptr_t)found, of->nbytes, kind, of)->start;
    return locked(CU_OK);
}

static CUresult release(uint64_t at, int kinds)
{
    LOCK;
    span *found = starting(at, kinds);
    if (found == NULL)
        return locked(CU_INVALID_VALUE);
    if (--found->opens == 0)
        munmap((void *)(uintptr_t)at, found->nbytes), let_go(found->memory), drop(found);
    return locked(CU_OK);
}

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t nbytes) { return allocate(at, nbytes, MALLOC); }
CUresult cuMemAllocManaged(CUdeviceptr *at, size_t nbytes, unsigned flags) { return allocate(at, nbytes, MANAGED); }
CUresult cuMemHostAlloc(void **at, size_t nbytes, unsigned flags) { return allocate((uint64_t *)at, nbytes, PINNED); }
CUresult cuMemFree_v2(CUdeviceptr at) { return release(at, 1 << MALLOC | 1 << MANAGED); }
CUresult cuMemFreeHost(void *at) { return release((uintptr_t)at, 1 << PINNED); }

CUresult cuMemHostRegister_v2(void *at, size_t nbytes, unsigned flags)
{
    LOCK;
    for (span *each = spans; each; each = each->next)
        if (each->kind == REGISTERED && each->start < (uintptr_t)at + nbytes && (uintptr_t)at < each->start + each->nbytes)
            return locked(CU_ALREADY_REGISTERED);
    add((uintptr_t)at, nbytes, REGISTERED, NULL);
    return locked(CU_OK);
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *found, void *at, unsigned flags)
{
    LOCK;
    *found = (uintptr_t)at;
    return locked(find(*found, 0) ? CU_OK : CU_INVALID_VALUE);
}
CUresult cuMemHostUnregister(void *at) /* once all that was queued has finished */
{
    for (int i = 0; i < DEVICES; i++)
        if (ss_device_synchronize(i))
            return 719;
    LOCK;
    span *found = starting((uintptr_t)at, 1 << REGISTERED);
    if (found)
        drop(found);
    return locked(found ? CU_OK : CU_NOT_REGISTERED);
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr at)
{
    LOCK;
    span *found = find(at, 0);
    if (found == NULL)
        return locked(CU_INVALID_VALUE);
    int host = found->kind == MANAGED || found->kind == PINNED || found->kind == REGISTERED;
    switch (attribute) {
    case 4: *(uint64_t *)data = host ? at : 0; return locked(host ? CU_OK : CU_INVALID_VALUE);
    case 7: *(uint64_t *)data = (uint64_t)found->id; return locked(CU_OK);
    case 8: *(int *)data = found->kind == MANAGED; return locked(CU_OK);
    case 9: *(int *)data = found->device; return locked(CU_OK);
    default: return locked(CU_NOT_SUPPORTED);
    }
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *nbytes, CUdeviceptr at)
{
    LOCK;
    span *found = find(at, 0);
    if (found)
        *start = found->start, *nbytes = found->nbytes;
    return locked(found ? CU_OK : CU_INVALID_VALUE);
}

/* --- other processes' ---------------------------------------------------------------------------------------------------- */

static CUresult describe(CUipc *handle, int fd, size_t nbytes)
{
    struct stat file;
    if (fstat(fd, &file))
        return CU_INVALID_VALUE;
    ipc_handle made = {"softcud", getpid(), fd, file.st_ino, nbytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &made, sizeof made);
    return CU_OK;
}

static CUresult open_handle(const ipc_handle *handle, int *fd)
{
    char path[64];
    struct stat file;
    if (memcmp(handle->magic, "softcud", 8) != 0)
        return CU_INVALID_VALUE;
    if (handle->pid == getpid())
        return CU_INVALID_CONTEXT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->pid, handle->fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0)
        return CU_INVALID_VALUE;
    if (fstat(*fd, &file) || file.st_ino != handle->inode || (uint64_t)file.st_size < handle->nbytes)
        return close(*fd), CU_INVALID_VALUE;
    return CU_OK;
}

CUresult cuIpcGetMemHandle(CUipc *handle, CUdeviceptr at)
{
    LOCK;
    span *found = find(at, 0);
    return locked(found && found->kind == MALLOC ? describe(handle, found->memory->fd, found->nbytes) : CU_INVALID_VALUE);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipc raw, unsigned flags)
{
    int fd;
    ipc_handle handle;
    memcpy(&handle, &raw, sizeof handle);
    CUresult code = open_handle(&handle, &fd);
    if (code)
        return code;
    LOCK;
    for (span *each = spans; each; each = each->next)
        if (each->kind == IMPORTED && each->inode == handle.inode && each->device == current)
            return close(fd), each->opens++, *at = each->start, locked(CU_OK);
    void *found = mmap(NULL, handle.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED)
        return locked(CU_OUT_OF_MEMORY);
    span *made = add((uintptr_t)found, handle.nbytes, IMPORTED, NULL);
    made->inode = handle.inode, *at = made->start;
    return locked(CU_OK);
}
CUresult cuIpcCloseMemHandle(CUdeviceptr at) { return release(at, 1 << IMPORTED); }

/* --- virtual memory ------------------------------------------------------------------------------------------------------ */

#define MEMORY(handle) ((memory *)(uintptr_t)(handle))
CUresult cuMemCreate(CUhandle *handle, size_t nbytes, const CUprop *prop, unsigned long long flags)
{
    if (nbytes % GRANULE || prop->location.type != 1 || prop->location.id >= DEVICES || prop->type != 1)
        return CU_INVALID_VALUE;
    memory *made = create(nbytes);
    return *handle = (uintptr_t)made, made ? CU_OK : CU_OUT_OF_MEMORY;
}
CUresult cuMemRelease(CUhandle handle) { return LOCK, let_go(MEMORY(handle)), locked(CU_OK); }
CUresult cuMemExportToShareableHandle(void *fd, CUhandle handle, int type, unsigned long long flags)
{
    *(int *)fd = fcntl(MEMORY(handle)->fd, F_DUPFD_CLOEXEC, 0);
    return *(int *)fd < 0 ? CU_OUT_OF_MEMORY : CU_OK;
}
CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *fd, int type)
{
    char path[64], name[64] = "";
    struct stat file;
    snprintf(path, sizeof path, "/proc/self/fd/%d", (int)(intptr_t)fd);
    if (readlink(path, name, sizeof name - 1) < 0 || strncmp(name, "/memfd:soft-cuda", 16) != 0 || stat(path, &file))
        return CU_INVALID_VALUE;
    memory *made = malloc(sizeof *made);
    *made = (memory){1, fcntl((int)(intptr_t)fd, F_DUPFD_CLOEXEC, 0), (size_t)file.st_size};
    return *handle = (uintptr_t)made, CU_OK;
}
CUresult cuMemGetAllocationGranularity(size_t *nbytes, const CUprop *prop, int option) { return *nbytes = GRANULE, CU_OK; }

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t nbytes, size_t unit, CUdeviceptr wanted, unsigned long long flags)
{
    if (nbytes == 0 || nbytes % GRANULE || wanted % GRANULE)
        return CU_INVALID_VALUE;
    char *found = mmap((void *)(uintptr_t)wanted, nbytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
    if (found == MAP_FAILED)
        return CU_OUT_OF_MEMORY;
    size_t before = -(uintptr_t)found % GRANULE;
    if (before)
        munmap(found, before);
    munmap(found + before + nbytes, GRANULE - before);
    LOCK;
    *at = add((uintptr_t)found + before, nbytes, RESERVED, NULL)->start;
    return locked(CU_OK);
}
CUresult cuMemAddressFree(CUdeviceptr at, size_t nbytes)
{
    LOCK;
    span *found = starting(at, 1 << RESERVED);
    for (span *each = spans; found && each; each = each->next)
        if (each->kind == MAPPED && at <= each->start && each->start < at + nbytes)
            found = NULL;
    if (found == NULL || found->nbytes != nbytes)
        return locked(CU_INVALID_VALUE);
    munmap((void *)(uintptr_t)at, nbytes), drop(found);
    return locked(CU_OK);
}
CUresult cuMemMap(CUdeviceptr at, size_t nbytes, size_t offset, CUhandle handle, unsigned long long flags)
{
    LOCK;
    span *room = find(at, 1);
    memory *of = MEMORY(handle);
    if (room == NULL || at + nbytes > room->start + room->nbytes || offset || nbytes > of->nbytes)
        return locked(CU_INVALID_VALUE);
    for (span *each = spans; each; each = each->next)
        if (each->kind == MAPPED && each->start < at + nbytes && at < each->start + each->nbytes)
            return locked(CU_ALREADY_MAPPED);
    if (mmap((void *)(uintptr_t)at, nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, of->fd, 0) == MAP_FAILED)
        return locked(CU_OUT_OF_MEMORY);
    of->refs++, add(at, nbytes, MAPPED, of);
    return locked(CU_OK);
}
CUresult cuMemUnmap(CUdeviceptr at, size_t nbytes)
{
    LOCK;
    span *found = starting(at, 1 << MAPPED);
    if (found == NULL || found->nbytes != nbytes)
        return locked(CU_INVALID_VALUE);
    mmap((void *)(uintptr_t)at, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    let_go(found->memory), drop(found);
    return locked(CU_OK);
}
CUresult cuMemSetAccess(CUdeviceptr at, size_t nbytes, const CUaccess *list, size_t count)
{
    int flags = list[count - 1].flags; /* for all devices */
    LOCK;
    for (uint64_t next = at; next < at + nbytes;) {
        span *found = starting(next, 1 << MAPPED);
        if (found == NULL)
            return locked(CU_INVALID_VALUE);
        next += found->nbytes;
    }
    int protection = (flags & 1 ? PROT_READ : 0) | (flags & 2 ? PROT_WRITE : 0);
    return locked(mprotect((void *)(uintptr_t)at, nbytes, protection) ? CU_INVALID_VALUE : CU_OK);
}

/* --- streams and events -------------------------------------------------------------------------------------------------- */

static ss_stream *of(CUstream stream)
{
    if ((uintptr_t)stream > 2)
        return stream;
    LOCK;
    if (defaults[current] == NULL)
        ss_stream_create(current, NULL, &defaults[current]);
    stream = defaults[current];
    pthread_mutex_unlock(&mu);
    return stream;
}

static CUresult known(CUdeviceptr at) { return LOCK, locked(find(at, 0) && at % 8 == 0 ? CU_OK : CU_INVALID_VALUE); }

CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return ss_stream_create(current, NULL, stream); }
CUresult cuStreamDestroy_v2(CUstream stream) { return ss_stream_destroy(stream); }
CUresult cuStreamQuery(CUstream stream) { return ss_stream_query(of(stream)); }
CUresult cuStreamSynchronize(CUstream stream)
{
    CUresult code;
    while ((code = cuStreamQuery(stream)) == CU_NOT_READY)
        usleep(20);
    return code;
}
CUresult cuStreamIsCapturing(CUstream stream, int *status) { return ss_captured(of(stream), status); }
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags)
{
    CUresult code = known(at);
    return code ? code : ss_store64(of(stream), at, value);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags)
{
    CUresult code = flags ? CU_NOT_SUPPORTED : known(at);
    return code ? code : ss_wait64_geq(of(stream), at, value);
}

typedef struct { CUcallback callback; CUstream stream; void *data; } called;
static void call(void *what)
{
    called one = *(called *)what;
    free(what);
    one.callback(one.stream, CU_OK, one.data);
}
CUresult cuStreamAddCallback(CUstream stream, CUcallback callback, void *data, unsigned flags)
{
    called *what = malloc(sizeof *what);
    *what = (called){callback, stream, data};
    return ss_host(of(stream), (uintptr_t)call, (uintptr_t)what);
}
CUresult cuLaunchHostFunc(CUstream stream, CUhost function, void *data)
{
    return ss_host(of(stream), (uintptr_t)function, (uintptr_t)data);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream stream)
{
    return ss_copy(of(stream), to, from, nbytes);
}

typedef struct { char *to; size_t count; unsigned value, unit; } filled;
static void fill(void *what)
{
    filled one = *(filled *)what;
    free(what);
    for (size_t i = 0; i < one.count; i++)
        memcpy(one.to + i * one.unit, &one.value, one.unit);
}
static CUresult put_fill(CUdeviceptr to, unsigned value, size_t count, unsigned unit, CUstream stream)
{
    filled *what = malloc(sizeof *what);
    *what = (filled){(char *)(uintptr_t)to, count, value, unit};
    return ss_host(of(stream), (uintptr_t)fill, (uintptr_t)what);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    return ss_fill(of(stream), to, value, count);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
    return put_fill(to, value, count, 2, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    return put_fill(to, value, count, 4, stream);
}

/* Streams may store to a counter, and wait for it, after its event was destroyed: then it is never used again. */
static CUresult make_event(CUevent *event, int fd)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    counter *found = fd < 0 ? calloc(1, sizeof *found) : mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found == NULL || found == MAP_FAILED)
        return CU_OUT_OF_MEMORY;
    *event = malloc(sizeof **event);
    **event = (struct CUevent_st){found, fd};
    return CU_OK;
}
CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    if (!(flags & 4))
        return make_event(event, -1);
    int fd = flags & 2 ? memfd_create("soft-cuda-event", MFD_CLOEXEC) : -1;
    return fd < 0 || ftruncate(fd, sysconf(_SC_PAGESIZE)) ? CU_INVALID_VALUE : make_event(event, fd);
}
CUresult cuEventDestroy_v2(CUevent event)
{
    if (event->fd >= 0)
        close(event->fd);
    else if (event->counter->done >= event->counter->recorded && event->counter->recorded == 0)
        free(event->counter);
    return free(event), CU_OK;
}
CUresult cuEventQuery(CUevent event)
{
    uint64_t wanted = __atomic_load_n(&event->counter->recorded, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&event->counter->done, __ATOMIC_SEQ_CST) >= wanted ? CU_OK : CU_NOT_READY;
}
CUresult cuEventSynchronize(CUevent event)
{
    while (cuEventQuery(event))
        usleep(20);
    return CU_OK;
}
CUresult cuEventRecord(CUevent event, CUstream stream)
{
    uint64_t number = __atomic_add_fetch(&event->counter->recorded, 1, __ATOMIC_SEQ_CST);
    return ss_store64(of(stream), (uintptr_t)&event->counter->done, number);
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    uint64_t wanted = __atomic_load_n(&event->counter->recorded, __ATOMIC_SEQ_CST);
    return ss_wait64_geq(of(stream), (uintptr_t)&event->counter->done, wanted);
}
CUresult cuIpcGetEventHandle(CUipc *handle, CUevent event)
{
    return event->fd < 0 ? CU_INVALID_HANDLE : describe(handle, event->fd, sizeof *event->counter);
}
CUresult cuIpcOpenEventHandle(CUevent *event, CUipc raw)
{
    int fd;
    ipc_handle handle;
    memcpy(&handle, &raw, sizeof handle);
    CUresult code = open_handle(&handle, &fd);
    return code ? code : make_event(event, fd);
}
