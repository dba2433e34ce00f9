/* What foreign_arrays.py measures with: a CUDA driver whose functions return at once, and a library with one
 * array, which says what it has by DLPack's exchange API. */
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "../src/native/python/dlpack.h"

#define DRIVER(name, ...) __attribute__((visibility("default"))) int name(__VA_ARGS__)

int64_t shape[1];
uint64_t memory_start, memory_nbytes, memory_number; /* of the only allocation */
int stream_busy;
void *stream_now;
long calls;

#define OPENED (1ull << 40) /* how far behind its address in the exporter memory is opened */

static int pointer(int attribute, uint64_t address, uint64_t *out)
{
    bool known = address - memory_start < memory_nbytes;
    switch (known ? attribute : 0) {
    case 2: /* MEMORY_TYPE */
        *(unsigned *)out = 2;
        break;
    case 7: /* BUFFER_ID */
        *out = memory_number;
        break;
    case 8: /* IS_MANAGED */
        *(unsigned char *)out = 0;
        break;
    case 9: /* DEVICE_ORDINAL */
        *(unsigned *)out = 0;
        break;
    case 10: /* IS_LEGACY_CUDA_IPC_CAPABLE */
        *(unsigned char *)out = 1;
        break;
    case 11: /* RANGE_START_ADDR */
        *out = memory_start;
        break;
    case 12: /* RANGE_SIZE */
        *out = memory_nbytes;
        break;
    default:
        *out = 0;
    }
    return known ? 0 : 1;
}

DRIVER(cuPointerGetAttribute, void *out, int attribute, uint64_t address)
{
    calls++;
    return pointer(attribute, address, out);
}

DRIVER(cuPointerGetAttributes, unsigned count, const int *attributes, void **out, uint64_t address)
{
    calls++;
    for (unsigned i = 0; i < count; i++)
        pointer(attributes[i], address, out[i]);
    return 0;
}

DRIVER(cuIpcGetMemHandle, char *handle, uint64_t address)
{
    calls++;
    memset(handle, 0, 64);
    memcpy(handle, &address, 8);
    memcpy(handle + 8, &memory_number, 8);
    return 0;
}

/* The importer's: it asks for the size of what it has opened. */
typedef struct {
    char bytes[64];
} ipc_handle;

DRIVER(cuIpcOpenMemHandle, uint64_t *out, ipc_handle handle, unsigned flags)
{
    calls++;
    memcpy(out, handle.bytes, 8);
    memory_start = *out += OPENED;
    return flags ? 0 : 0;
}

DRIVER(cuThreadExchangeStreamCaptureMode, int *mode)
{
    static int current;
    int before = current;
    calls++;
    current = *mode;
    *mode = before;
    return 0;
}

DRIVER(cuCtxPushCurrent, void *context) { return calls++, context ? 0 : 201; }
DRIVER(cuCtxPopCurrent, void **context) { return calls++, *context = (void *)0x1000, 0; }
DRIVER(cuStreamIsCapturing, void *stream, int *status) { return calls++, *status = 0, stream ? 0 : 0; }
DRIVER(cuStreamQuery, void *stream) { return calls++, (uintptr_t)stream < 3 && stream_busy ? 600 : 0; }
DRIVER(cuStreamWriteValue64, void *stream, uint64_t *at, uint64_t value, unsigned flags)
{
    calls++;
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
    return stream || flags ? 0 : 0;
}

/* Stands in for what the measured code does not call. */
DRIVER(other, void) { return 0; }

static int view(void *array, dl_tensor *out)
{
    (void)array;
    *out = (dl_tensor){(void *)memory_start, {2, 0}, 1, {1, 8, 1}, shape, NULL, 0};
    return 0;
}

static int stream(int32_t type, int32_t id, void **out)
{
    (void)type, (void)id;
    *out = stream_now;
    return 0;
}

dl_exchange exchange = {.major = 1, .minor = 3, .view = view, .stream = stream};
