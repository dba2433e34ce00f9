/* An OpenCL loader that forwards to another (OPENCL_LOADER), and in which one function fails: OPENCL_FAULT is
 * "FUNCTION=CODE", where the code "crash" crashes, or "QUERY=ANSWER" for a query of clGetDeviceInfo that begins with 0x. */

#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long (*function)(long, long, long, long, long, long, long, long, long, long, long, long);

static void *loader;
static char fault[64];
static const char *answer = "";

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

static int fails(const char *name)
{
    if (strcmp(fault, name))
        return 0;
    if (!strcmp(answer, "crash"))
        raise(SIGSEGV);
    return 1;
}

#define FORWARD(NAME)                                                                                                  \
    long NAME(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l)          \
    {                                                                                                                  \
        if (fails(#NAME))                                                                                              \
            return atol(answer);                                                                                       \
        return ((function)dlsym(loader, #NAME))(a, b, c, d, e, f, g, h, i, j, k, l);                                   \
    }

FORWARD(clGetPlatformIDs) FORWARD(clGetDeviceIDs) FORWARD(clGetPlatformInfo) FORWARD(clGetCommandQueueInfo)
FORWARD(clGetEventInfo) FORWARD(clReleaseCommandQueue) FORWARD(clReleaseEvent) FORWARD(clReleaseMemObject)
FORWARD(clFlush) FORWARD(clFinish) FORWARD(clSetUserEventStatus) FORWARD(clWaitForEvents) FORWARD(clSetEventCallback)
FORWARD(clEnqueueMarkerWithWaitList) FORWARD(clEnqueueBarrierWithWaitList) FORWARD(clEnqueueSVMMemcpy)
FORWARD(clEnqueueSVMMemFill) FORWARD(clEnqueueFillBuffer) FORWARD(clEnqueueReadBuffer) FORWARD(clCreateContext)
FORWARD(clCreateCommandQueueWithProperties) FORWARD(clCreateUserEvent) FORWARD(clCreateBuffer)

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
