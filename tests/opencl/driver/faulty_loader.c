/* An OpenCL loader that forwards to another (OPENCL_LOADER), and in which one function fails: OPENCL_FAULT is
 * "FUNCTION=CODE", or "QUERY=ANSWER" for a query of clGetDeviceInfo that begins with 0x. With OPENCL_DEVICE a function fails
 * only for queues of the device of that name. In place of the code:
 *   crash    it crashes
 *   abort    it writes to stderr and aborts, as Intel's crash handler does
 *   pid      the same, with other words in each process, as LLVM does
 *   exit     it ends the process with a status
 *   late     it works, and the process crashes at its exit
 *   hang     it does not return
 *   slow     clSetEventCallback only: the first callback is slow */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef long (*function)(long, long, long, long, long, long, long, long, long, long, long, long);

static void *loader;
static char fault[64];
static const char *answer = "";
static long faulty_queue; /* 0: all */

__attribute__((constructor)) static void begin(void)
{
    loader = dlopen(getenv("OPENCL_LOADER"), RTLD_NOW | RTLD_LOCAL);
    if (!loader) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    if (getenv("OPENCL_FAULT"))
        snprintf(fault, sizeof fault, "%s", getenv("OPENCL_FAULT"));
    char *equals = strchr(fault, '=');
    if (equals) {
        *equals = 0;
        answer = equals + 1;
    }
}

static void crash(void) /* no raise(): Intel's handler returns once it has written its report */
{
    volatile int *volatile nowhere = NULL;
    *nowhere = 0;
}

static int fails(const char *name, long first)
{
    if (strcmp(fault, name) || (getenv("OPENCL_DEVICE") && first != faulty_queue))
        return 0;
    if (!strcmp(answer, "crash"))
        crash();
    if (!strcmp(answer, "abort")) {
        fprintf(stderr, "PLEASE submit a bug report\n");
        abort();
    }
    if (!strcmp(answer, "pid")) {
        fprintf(stderr, "LLVM ERROR: in process %d\n", getpid());
        abort();
    }
    if (!strcmp(answer, "exit")) {
        fprintf(stderr, "LLVM ERROR: out of registers\n");
        _exit(1);
    }
    while (!strcmp(answer, "hang"))
        pause();
    if (!strcmp(answer, "late")) {
        atexit(crash);
        return 0;
    }
    return strcmp(answer, "slow") != 0;
}

#define FORWARD(NAME)                                                                                                  \
    long NAME(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l)          \
    {                                                                                                                  \
        if (fails(#NAME, a))                                                                                           \
            return atol(answer);                                                                                       \
        return ((function)dlsym(loader, #NAME))(a, b, c, d, e, f, g, h, i, j, k, l);                                   \
    }

FORWARD(clGetPlatformIDs) FORWARD(clGetDeviceIDs) FORWARD(clGetPlatformInfo) FORWARD(clGetCommandQueueInfo)
FORWARD(clGetEventInfo) FORWARD(clReleaseCommandQueue) FORWARD(clReleaseEvent) FORWARD(clReleaseMemObject)
FORWARD(clFlush) FORWARD(clFinish) FORWARD(clSetUserEventStatus) FORWARD(clWaitForEvents)
FORWARD(clEnqueueMarkerWithWaitList) FORWARD(clEnqueueBarrierWithWaitList) FORWARD(clEnqueueSVMMemcpy)
FORWARD(clEnqueueSVMMemFill) FORWARD(clEnqueueFillBuffer) FORWARD(clEnqueueReadBuffer) FORWARD(clCreateContext)
FORWARD(clCreateUserEvent) FORWARD(clCreateBuffer)

int32_t clGetDeviceInfo(void *device, uint32_t query, size_t nbytes, void *into, size_t *needed)
{
    if (!strncmp(fault, "0x", 2) && strtoul(fault, NULL, 16) == query && into) {
        uint64_t said = strtoull(answer, NULL, 0);
        memset(into, 0, nbytes);
        memcpy(into, &said, nbytes < sizeof said ? nbytes : sizeof said);
        return 0;
    }
    return ((int32_t(*)(void *, uint32_t, size_t, void *, size_t *))dlsym(loader, "clGetDeviceInfo"))(
        device, query, nbytes, into, needed);
}

void *clCreateCommandQueueWithProperties(void *context, void *device, void *properties, void *code)
{
    void *made = ((void *(*)(void *, void *, void *, void *))dlsym(loader, "clCreateCommandQueueWithProperties"))(
        context, device, properties, code);
    char name[256] = "";
    clGetDeviceInfo(device, 0x102B, sizeof name, name, NULL);
    if (getenv("OPENCL_DEVICE") && !strcmp(name, getenv("OPENCL_DEVICE")))
        faulty_queue = (long)made;
    return made;
}

typedef void (*notify)(void *event, int32_t status, void *data);

static notify first_callback;

static void late_callback(void *event, int32_t status, void *data)
{
    sleep(6);
    first_callback(event, status, data);
}

int32_t clSetEventCallback(void *event, int32_t type, notify callback, void *data)
{
    if (fails("clSetEventCallback", (long)event))
        return atoi(answer);
    if (!strcmp(fault, "clSetEventCallback") && !first_callback) {
        first_callback = callback;
        callback = late_callback;
    }
    return ((int32_t(*)(void *, int32_t, notify, void *))dlsym(loader, "clSetEventCallback"))(event, type, callback, data);
}
