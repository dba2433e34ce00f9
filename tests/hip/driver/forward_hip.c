/* libamdhip64 over CUDA's driver: each function of HIP that the adapter calls, forwarded. The driver is found when it is
 * first needed: libcuda.so.1, or the library that HIP_FORWARD_TO names (the software driver).
 *
 * As it is, it is like release 6 of HIP on a device that has everything. With -DAMD it is like release 5.2.3 where
 * GPU_STREAMOPS_CP_WAIT is set: waits are refused off signal memory, streams share four hardware queues, there are no
 * hipLaunchHostFunc and no memory with file descriptors, and hipIpcMemLazyEnablePeerAccess is 0.
 *
 * It keeps books, and fails calls as a test tells it to (forward_…). Compares of waits are those of the driver below:
 * CUDA's are cyclic, the software driver's unsigned; they are the same for numbers below 2^63. */
#define _GNU_SOURCE
#include "cu_table.h"
#include "hip_subset.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEVICES = 16, QUEUES = 4, NAMES = 128, SIGNALS = 64, LARGE = 2 << 20 };
#ifdef AMD
enum { VERSION = 50221153, LAZY = 0 };
#else
enum { VERSION = 60443484, LAZY = 1 };
#endif
#define EXPORT __attribute__((visibility("default")))

static struct {
#define MEMBER(name, arguments) CUresult (*name) arguments;
    CU_FUNCTIONS(MEMBER)
} cu;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* all that follows */
static int loaded, count, over_cuda;
static CUcontext contexts[DEVICES];
static void *signals[SIGNALS]; /* signal memory */
static __thread int current;

/* --- books and faults ---------------------------------------------------------------------------------------------- */

enum kind { MEMORY, IMPORT, REGISTRATION, ALLOCATION, RESERVATION, MAPPING, STREAM, EVENT, KINDS };
static const char *const kinds[KINDS] = {"memory", "import",  "registration", "allocation",
                                         "reservation", "mapping", "stream", "event"};
static int alive[KINDS], names;
static struct { const char *name; int calls, at, code; } books[NAMES]; /* call `at` fails (0: each), if there is a code */

static int book(const char *name)
{
    int i = 0;
    while (i < names && strcmp(books[i].name, name) != 0)
        i++;
    if (i == names && names < NAMES)
        books[names++].name = strdup(name);
    return i;
}

EXPORT void forward_fail(const char *name, int nth, int code)
{
    pthread_mutex_lock(&mu);
    int i = book(name);
    books[i].at = nth ? books[i].calls + nth : 0, books[i].code = code;
    pthread_mutex_unlock(&mu);
}

EXPORT void forward_reset(void)
{
    pthread_mutex_lock(&mu);
    for (int i = 0; i < names; i++)
        books[i].calls = books[i].at = books[i].code = 0;
    pthread_mutex_unlock(&mu);
}

EXPORT const char *forward_called(int i, int *calls)
{
    pthread_mutex_lock(&mu);
    const char *name = i < names ? books[i].name : NULL;
    *calls = name ? books[i].calls : 0;
    pthread_mutex_unlock(&mu);
    return name;
}

EXPORT void forward_books(char *text, size_t nbytes)
{
    size_t at = 0;
    pthread_mutex_lock(&mu);
    *text = 0;
    for (int i = 0; i < KINDS; i++)
        if (alive[i] && at < nbytes)
            at += (size_t)snprintf(text + at, nbytes - at, "%s%d %s", at ? ", " : "", alive[i], kinds[i]);
    pthread_mutex_unlock(&mu);
}

__attribute__((destructor)) static void close_books(void) /* HIP_BOOKS: a file, one line for each process */
{
    const char *path = getenv("HIP_BOOKS");
    FILE *file = path && loaded == getpid() ? fopen(path, "a") : NULL;
    if (file == NULL)
        return;
    char text[1024];
    forward_books(text, sizeof text);
    fprintf(file, "%d: %s left\n", getpid(), *text ? text : "0");
    fclose(file);
}

/* --- calls ----------------------------------------------------------------------------------------------------------- */

#define ERRORS(X)                                                                                                         \
    X(hipSuccess) X(hipErrorInvalidValue) X(hipErrorOutOfMemory) X(hipErrorNotInitialized) X(hipErrorDeinitialized)       \
    X(hipErrorInvalidDevicePointer) X(hipErrorInsufficientDriver) X(hipErrorNoDevice) X(hipErrorInvalidDevice)            \
    X(hipErrorInvalidContext) X(hipErrorMapFailed) X(hipErrorAlreadyMapped) X(hipErrorNotMapped)                          \
    X(hipErrorECCNotCorrectable) X(hipErrorInvalidHandle) X(hipErrorNotReady) X(hipErrorIllegalAddress)                   \
    X(hipErrorLaunchTimeOut) X(hipErrorContextIsDestroyed) X(hipErrorAssert) X(hipErrorHostMemoryAlreadyRegistered)       \
    X(hipErrorHostMemoryNotRegistered) X(hipErrorLaunchFailure) X(hipErrorNotSupported)                                   \
    X(hipErrorStreamCaptureUnsupported) X(hipErrorStreamCaptureInvalidated) X(hipErrorStreamCaptureMerge)                 \
    X(hipErrorStreamCaptureUnmatched) X(hipErrorStreamCaptureUnjoined) X(hipErrorStreamCaptureIsolation)                  \
    X(hipErrorStreamCaptureImplicit) X(hipErrorCapturedEvent) X(hipErrorStreamCaptureWrongThread) X(hipErrorUnknown)

static const char *name_of(int code)
{
#define NAME(each) case each: return #each;
    switch (code) { ERRORS(NAME) }
    return NULL;
}

/* CUDA's number for a failure is HIP's, too, where HIP has the failure. */
static hipError_t told(CUresult code) { return (hipError_t)(name_of(code) ? code : (int)hipErrorUnknown); }

static hipError_t load(void) /* with mu */
{
    const char *other = getenv("HIP_FORWARD_TO");
    void *library = dlopen(other ? other : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return hipErrorNoDevice;
#define FIND(name, arguments)                                                                                             \
    if ((*(void **)&cu.name = dlsym(library, #name)) == NULL)                                                             \
        return hipErrorInsufficientDriver;
    CU_FUNCTIONS(FIND)
    CUresult code = cu.cuInit(0);
    code = code ? code : cu.cuDeviceGetCount(&count);
    count = count < DEVICES ? count : DEVICES;
    over_cuda = other == NULL;
    loaded = code ? 0 : getpid();
    return told(code);
}

static hipError_t enter(const char *name) /* with the thread's device current for the driver */
{
    pthread_mutex_lock(&mu);
    hipError_t code = loaded ? hipSuccess : load();
    int i = book(name);
    if ((++books[i].calls == books[i].at || books[i].at == 0) && books[i].code && !code)
        code = (hipError_t)books[i].code;
    if (!code && contexts[current] == NULL)
        code = told(cu.cuDevicePrimaryCtxRetain(&contexts[current], current));
    pthread_mutex_unlock(&mu);
    return code ? code : told(cu.cuCtxSetCurrent(contexts[current]));
}

static hipError_t note(enum kind kind, int change, CUresult code)
{
    if (!code)
        __atomic_fetch_add(&alive[kind], change, __ATOMIC_RELAXED);
    return told(code);
}

#define ENTER                                                                                                             \
    hipError_t entered = enter(__func__);                                                                                 \
    if (entered)                                                                                                          \
        return entered;
#define FORWARD(call) { ENTER return told(cu.call); }
#define MAKES(kind, call) { ENTER return note(kind, 1, cu.call); }
#define ENDS(kind, call) { ENTER return note(kind, -1, cu.call); }

EXPORT const char *hipGetErrorName(hipError_t code) { const char *name = name_of(code); return name ? name : "hipErrorUnknown"; }
EXPORT hipError_t hipInit(unsigned int flags) { ENTER return flags ? hipErrorInvalidValue : hipSuccess; }
EXPORT hipError_t hipRuntimeGetVersion(int *version) { ENTER *version = VERSION; return hipSuccess; }
EXPORT hipError_t hipGetDeviceCount(int *found) { ENTER *found = count; return hipSuccess; }
EXPORT hipError_t hipGetDevice(int *device) { ENTER *device = current; return hipSuccess; }
EXPORT hipError_t hipSetDevice(int device)
{
    ENTER
    if (device < 0 || device >= count)
        return hipErrorInvalidDevice;
    current = device;
    return hipSuccess;
}
EXPORT hipError_t hipDeviceGetName(char *name, int length, hipDevice_t device) FORWARD(cuDeviceGetName(name, length, device))
EXPORT hipError_t hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device) FORWARD(cuDeviceGetUuid_v2(uuid, device))
EXPORT hipError_t hipDeviceGetPCIBusId(char *name, int length, int device)
    FORWARD(cuDeviceGetPCIBusId(name, length, device))
EXPORT hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer) FORWARD(cuDeviceCanAccessPeer(can, device, peer))
EXPORT hipError_t hipMemGetInfo(size_t *unused, size_t *total) FORWARD(cuMemGetInfo_v2(unused, total))
EXPORT hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode)
    FORWARD(cuThreadExchangeStreamCaptureMode((int *)mode))

static const struct { int hip, cuda; } attributes[] = {
    {hipDeviceAttributeEccEnabled, 32}, {hipDeviceAttributeClockRate, 13},
    {hipDeviceAttributeConcurrentManagedAccess, 89}, {hipDeviceAttributeIntegrated, 18},
    {hipDeviceAttributeL2CacheSize, 38}, {hipDeviceAttributeManagedMemory, 83}, {hipDeviceAttributeMaxBlockDimX, 2},
    {hipDeviceAttributeMaxBlockDimY, 3}, {hipDeviceAttributeMaxBlockDimZ, 4}, {hipDeviceAttributeMaxGridDimX, 5},
    {hipDeviceAttributeMaxGridDimY, 6}, {hipDeviceAttributeMaxGridDimZ, 7}, {hipDeviceAttributeMaxThreadsPerBlock, 1},
    {hipDeviceAttributeMemoryBusWidth, 37}, {hipDeviceAttributeMemoryClockRate, 36},
    {hipDeviceAttributeMultiprocessorCount, 16}, {hipDeviceAttributeMaxRegistersPerBlock, 12},
    {hipDeviceAttributeMaxSharedMemoryPerBlock, 8}, {hipDeviceAttributeTotalConstantMemory, 9},
    {hipDeviceAttributeWarpSize, 10},
#if !defined AMD && (!defined HIP_VERSION_MAJOR || HIP_VERSION_MAJOR >= 6)
    {hipDeviceAttributeVirtualMemoryManagementSupported, 102},
#endif
};

EXPORT hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device)
{
    ENTER
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].hip == (int)attribute)
            return told(cu.cuDeviceGetAttribute(value, attributes[i].cuda, device));
    return hipErrorInvalidValue;
}

/* --- memory ------------------------------------------------------------------------------------------------------------ */

#define AT(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

static void **signal_memory(const void *at) /* with mu; NULL: a free place */
{
    for (int i = 0; i < SIGNALS; i++)
        if (signals[i] == at)
            return &signals[i];
    return NULL;
}

/* CUDA puts small allocations beside others, and one handle names them all. */
EXPORT hipError_t hipMalloc(void **at, size_t nbytes)
    MAKES(MEMORY, cuMemAlloc_v2((CUdeviceptr *)at, (nbytes + LARGE - 1) / LARGE * LARGE))
EXPORT hipError_t hipMallocManaged(void **at, size_t nbytes, unsigned int flags)
    MAKES(MEMORY, cuMemAllocManaged((CUdeviceptr *)at, nbytes, flags))

EXPORT hipError_t hipExtMallocWithFlags(void **at, size_t nbytes, unsigned int flags)
{
    ENTER
    if (flags != hipMallocSignalMemory || nbytes != 8)
        return hipErrorInvalidValue;
    CUresult code = cu.cuMemHostAlloc(at, nbytes, hipHostRegisterPortable | hipHostRegisterMapped);
    if (code)
        return told(code);
    memset(*at, 0, nbytes);
    pthread_mutex_lock(&mu);
    void **place = signal_memory(NULL);
    if (place)
        *place = *at;
    pthread_mutex_unlock(&mu);
    return place ? note(MEMORY, 1, CU_OK) : hipErrorOutOfMemory;
}

EXPORT hipError_t hipFree(void *at)
{
    ENTER
    pthread_mutex_lock(&mu);
    void **place = at ? signal_memory(at) : NULL;
    if (place)
        *place = NULL;
    pthread_mutex_unlock(&mu);
    return at ? note(MEMORY, -1, place ? cu.cuMemFreeHost(at) : cu.cuMemFree_v2(AT(at))) : hipSuccess;
}

EXPORT hipError_t hipHostRegister(void *at, size_t nbytes, unsigned int flags)
    MAKES(REGISTRATION, cuMemHostRegister_v2(at, nbytes, flags))
EXPORT hipError_t hipHostGetDevicePointer(void **found, void *at, unsigned int flags)
    FORWARD(cuMemHostGetDevicePointer_v2((CUdeviceptr *)found, at, flags))
EXPORT hipError_t hipHostUnregister(void *at) ENDS(REGISTRATION, cuMemHostUnregister(at))

EXPORT hipError_t hipPointerGetAttribute(void *data, hipPointer_attribute attribute, hipDeviceptr_t at)
{
    ENTER
    uint64_t found = 0; /* AMD's writes a byte, four, or an address */
    CUresult code = cu.cuPointerGetAttribute(&found, (int)attribute, AT(at));
    size_t nbytes = attribute == HIP_POINTER_ATTRIBUTE_HOST_POINTER ? 8
                    : attribute == HIP_POINTER_ATTRIBUTE_IS_MANAGED ? 1 : 4;
    memcpy(data, &found, code ? 0 : nbytes);
    return told(code);
}

EXPORT hipError_t hipMemGetAddressRange(hipDeviceptr_t *start, size_t *nbytes, hipDeviceptr_t at)
    FORWARD(cuMemGetAddressRange_v2((CUdeviceptr *)start, nbytes, AT(at)))
EXPORT hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *handle, void *at) FORWARD(cuIpcGetMemHandle((CUipc *)handle, AT(at)))

EXPORT hipError_t hipIpcOpenMemHandle(void **at, hipIpcMemHandle_t handle, unsigned int flags)
{
    ENTER
    CUipc raw;
    memcpy(&raw, &handle, sizeof raw);
    return flags == LAZY ? note(IMPORT, 1, cu.cuIpcOpenMemHandle_v2((CUdeviceptr *)at, raw, 1)) : hipErrorInvalidValue;
}

EXPORT hipError_t hipIpcCloseMemHandle(void *at) ENDS(IMPORT, cuIpcCloseMemHandle(AT(at)))

#ifndef AMD
#define HANDLE(handle) ((CUhandle)(uintptr_t)(handle))
EXPORT hipError_t hipMemCreate(hipMemGenericAllocationHandle_t *handle, size_t nbytes, const hipMemAllocationProp *prop,
                               unsigned long long flags)
    MAKES(ALLOCATION, cuMemCreate((CUhandle *)handle, nbytes, (const CUprop *)prop, flags))
EXPORT hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle) ENDS(ALLOCATION, cuMemRelease(HANDLE(handle)))
EXPORT hipError_t hipMemExportToShareableHandle(void *fd, hipMemGenericAllocationHandle_t handle,
                                                hipMemAllocationHandleType type, unsigned long long flags)
    FORWARD(cuMemExportToShareableHandle(fd, HANDLE(handle), (int)type, flags))

EXPORT hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *handle, void *fd,
                                                  hipMemAllocationHandleType type)
{
    ENTER
    struct stat file;
    if (VERSION < 70100000) /* wants its address */
        fd = (void *)(intptr_t) * (int *)fd;
    if (over_cuda && (fstat((int)(intptr_t)fd, &file) || !S_ISCHR(file.st_mode)))
        return hipErrorInvalidValue; /* CUDA does not say it of every file */
    return note(ALLOCATION, 1, cu.cuMemImportFromShareableHandle((CUhandle *)handle, fd, (int)type));
}

EXPORT hipError_t hipMemGetAllocationGranularity(size_t *nbytes, const hipMemAllocationProp *prop,
                                                 hipMemAllocationGranularity_flags option)
    FORWARD(cuMemGetAllocationGranularity(nbytes, (const CUprop *)prop, (int)option))
EXPORT hipError_t hipMemAddressReserve(void **at, size_t nbytes, size_t unit, void *wanted, unsigned long long flags)
    MAKES(RESERVATION, cuMemAddressReserve((CUdeviceptr *)at, nbytes, unit, AT(wanted), flags))
EXPORT hipError_t hipMemAddressFree(void *at, size_t nbytes) ENDS(RESERVATION, cuMemAddressFree(AT(at), nbytes))
EXPORT hipError_t hipMemMap(void *at, size_t nbytes, size_t offset, hipMemGenericAllocationHandle_t handle,
                            unsigned long long flags)
    MAKES(MAPPING, cuMemMap(AT(at), nbytes, offset, HANDLE(handle), flags))
EXPORT hipError_t hipMemUnmap(void *at, size_t nbytes) ENDS(MAPPING, cuMemUnmap(AT(at), nbytes))
EXPORT hipError_t hipMemSetAccess(void *at, size_t nbytes, const hipMemAccessDesc *list, size_t n)
    FORWARD(cuMemSetAccess(AT(at), nbytes, (const CUaccess *)list, n))

_Static_assert(sizeof(hipMemAccessDesc) == sizeof(CUaccess), "of one layout");
#if !defined HIP_VERSION_MAJOR || HIP_VERSION_MAJOR >= 6
_Static_assert(sizeof(hipMemAllocationProp) == sizeof(CUprop), "of one layout");
_Static_assert(offsetof(hipMemAllocationProp, location) == offsetof(CUprop, location), "of one layout");
#endif
#endif
_Static_assert(sizeof(hipIpcMemHandle_t) == sizeof(CUipc) && sizeof(hipIpcEventHandle_t) == sizeof(CUipc), "of one size");

/* --- streams and events --------------------------------------------------------------------------------------------------- */

#ifdef AMD
/* A stream is one of those that share a hardware queue. It has finished once its own last operation has. */
typedef struct { CUstream queue; int *users; CUevent last; } shared_stream;
static struct { CUstream queue; int users; } hardware[DEVICES][QUEUES];

static shared_stream *shared(hipStream_t stream) { return (uintptr_t)stream > 15 ? (shared_stream *)stream : NULL; }
static CUstream of(hipStream_t stream) { return shared(stream) ? shared(stream)->queue : (CUstream)stream; }

static hipError_t put(hipStream_t stream, CUresult code)
{
    if (!code && shared(stream))
        code = cu.cuEventRecord(shared(stream)->last, of(stream));
    return told(code);
}

static CUresult create_stream(hipStream_t *stream, unsigned flags)
{
    int best = 0; /* a new queue while there are fewer than four, then the one with the fewest streams */
    CUresult code = CU_OK;
    shared_stream *made = calloc(1, sizeof *made);
    pthread_mutex_lock(&mu);
    for (int i = 1; i < QUEUES; i++)
        if (hardware[current][i].users < hardware[current][best].users)
            best = i;
    if (hardware[current][best].queue == NULL)
        code = cu.cuStreamCreate(&hardware[current][best].queue, flags);
    code = code ? code : cu.cuEventCreate(&made->last, hipEventDisableTiming);
    made->queue = hardware[current][best].queue, made->users = &hardware[current][best].users;
    *made->users += !code;
    pthread_mutex_unlock(&mu);
    *stream = (hipStream_t)made;
    return code;
}

static CUresult destroy_stream(hipStream_t stream)
{
    shared_stream *gone = shared(stream);
    pthread_mutex_lock(&mu);
    --*gone->users;
    pthread_mutex_unlock(&mu);
    CUresult code = cu.cuEventDestroy_v2(gone->last);
    free(gone);
    return code;
}

static CUresult query(hipStream_t s) { return shared(s) ? cu.cuEventQuery(shared(s)->last) : cu.cuStreamQuery(of(s)); }
static CUresult wait_for(hipStream_t s)
{
    return shared(s) ? cu.cuEventSynchronize(shared(s)->last) : cu.cuStreamSynchronize(of(s));
}
#else
static CUstream of(hipStream_t stream) { return (CUstream)stream; }
static hipError_t put(hipStream_t stream, CUresult code) { return (void)stream, told(code); }
static CUresult create_stream(hipStream_t *stream, unsigned flags) { return cu.cuStreamCreate((CUstream *)stream, flags); }
static CUresult destroy_stream(hipStream_t stream) { return cu.cuStreamDestroy_v2(of(stream)); }
static CUresult query(hipStream_t stream) { return cu.cuStreamQuery(of(stream)); }
static CUresult wait_for(hipStream_t stream) { return cu.cuStreamSynchronize(of(stream)); }
#endif
#define PUT(call) { ENTER return put(s, cu.call); }

EXPORT hipError_t hipStreamCreateWithFlags(hipStream_t *s, unsigned int flags)
{
    ENTER return note(STREAM, 1, create_stream(s, flags));
}
EXPORT hipError_t hipStreamDestroy(hipStream_t s) { ENTER return note(STREAM, -1, destroy_stream(s)); }
EXPORT hipError_t hipStreamQuery(hipStream_t s) { ENTER return told(query(s)); }
EXPORT hipError_t hipStreamSynchronize(hipStream_t s) { ENTER return told(wait_for(s)); }
EXPORT hipError_t hipStreamIsCapturing(hipStream_t s, hipStreamCaptureStatus *status)
    FORWARD(cuStreamIsCapturing(of(s), (int *)status))
EXPORT hipError_t hipStreamWaitEvent(hipStream_t s, hipEvent_t event, unsigned int flags)
    PUT(cuStreamWaitEvent(of(s), (CUevent)event, flags))
EXPORT hipError_t hipStreamWriteValue64(hipStream_t s, void *at, uint64_t value, unsigned int flags)
    PUT(cuStreamWriteValue64_v2(of(s), AT(at), value, flags))

EXPORT hipError_t hipStreamWaitValue64(hipStream_t s, void *at, uint64_t value, unsigned int flags, uint64_t mask)
{
    ENTER
    if (mask != UINT64_MAX || flags != hipStreamWaitValueGte || value >> 63)
        return hipErrorNotSupported; /* CUDA compares all bits, and cyclically */
#ifdef AMD
    pthread_mutex_lock(&mu);
    bool known = signal_memory(at) != NULL;
    pthread_mutex_unlock(&mu);
    if (!known)
        return hipErrorInvalidValue;
#endif
    return put(s, cu.cuStreamWaitValue64_v2(of(s), AT(at), value, 0));
}

EXPORT hipError_t hipStreamAddCallback(hipStream_t s, hipStreamCallback_t callback, void *data, unsigned int flags)
    PUT(cuStreamAddCallback(of(s), (CUcallback)callback, data, flags))
#ifndef AMD
EXPORT hipError_t hipLaunchHostFunc(hipStream_t s, hipHostFn_t function, void *data)
    PUT(cuLaunchHostFunc(of(s), function, data))
#endif
EXPORT hipError_t hipMemcpyAsync(void *to, const void *from, size_t nbytes, hipMemcpyKind kind, hipStream_t s)
{
    ENTER return kind == hipMemcpyDefault ? put(s, cu.cuMemcpyAsync(AT(to), AT(from), nbytes, of(s))) : hipErrorInvalidValue;
}
EXPORT hipError_t hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, size_t n, hipStream_t s)
    PUT(cuMemsetD8Async(AT(to), value, n, of(s)))
EXPORT hipError_t hipMemsetD16Async(hipDeviceptr_t to, unsigned short value, size_t n, hipStream_t s)
    PUT(cuMemsetD16Async(AT(to), value, n, of(s)))
EXPORT hipError_t hipMemsetD32Async(hipDeviceptr_t to, int value, size_t n, hipStream_t s)
    PUT(cuMemsetD32Async(AT(to), (unsigned)value, n, of(s)))

EXPORT hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags)
    MAKES(EVENT, cuEventCreate((CUevent *)event, flags))
EXPORT hipError_t hipEventDestroy(hipEvent_t event) ENDS(EVENT, cuEventDestroy_v2((CUevent)event))
EXPORT hipError_t hipEventQuery(hipEvent_t event) FORWARD(cuEventQuery((CUevent)event))
EXPORT hipError_t hipEventRecord(hipEvent_t event, hipStream_t s) PUT(cuEventRecord((CUevent)event, of(s)))
EXPORT hipError_t hipIpcGetEventHandle(hipIpcEventHandle_t *handle, hipEvent_t event)
    FORWARD(cuIpcGetEventHandle((CUipc *)handle, (CUevent)event))
EXPORT hipError_t hipIpcOpenEventHandle(hipEvent_t *event, hipIpcEventHandle_t handle)
{
    ENTER
    CUipc raw;
    memcpy(&raw, &handle, sizeof raw);
    return note(EVENT, 1, cu.cuIpcOpenEventHandle((CUevent *)event, raw));
}
