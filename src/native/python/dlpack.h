/* The structs of DLPack 1.x, as its ABI has them. */
#ifndef XP_DLPACK_H
#define XP_DLPACK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int32_t type, id;
} dl_device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *);
} dl_managed;

typedef struct dl_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_versioned *);
    uint64_t flags;
    dl_tensor tensor;
} dl_versioned;

/* The table of DLPack 1.3. A newer version links to the older ones by `previous`. */
typedef struct dl_exchange {
    uint32_t major, minor;
    const struct dl_exchange *previous;
    void *allocate, *from_object;
    int (*to_object)(dl_versioned *tensor, void **array); /* takes the tensor over; -1 with an exception */
    int (*view)(void *array, dl_tensor *out); /* -1 with an exception; may be NULL */
    int (*stream)(int32_t type, int32_t id, void **out);
} dl_exchange;

#define DL_EXCHANGE "dlpack_exchange_api"

#define DL_UINT 1
#define DL_COMPLEX 5 /* may be conjugated when it is read, which a view cannot express */

/* dlpack.c: shape and strides in bytes of what was viewed, and the bytes that its elements span, relative to the
 * first. Returns false if it spans none, or the array is impossible. */
bool xp_viewed_dims(const dl_tensor *t, int64_t itemsize, int64_t *dims, int64_t *low, int64_t *high);
const dl_exchange *xp_exchange_of(PyObject *capsule); /* dlpack.c; NULL if it has no version that we know */

/* Tensors of the exchange's library. Tensors of one memory share an `xp_holder`. */
typedef struct xp_holder xp_holder;
xp_holder *xp_held_by(PyObject *owner, uint64_t address, dl_device device); /* NULL with an exception */
void xp_let_go(xp_holder *held); /* from any thread, with or without Python's lock */
bool xp_whole_steps(unsigned ndim, const int64_t *dims, uint32_t itemsize); /* whether DLPack and torch take its strides */
/* Make a tensor at `offset` from the holder's address. `dims`: the shape, then the strides in bytes. Returns NULL
 * with an exception. */
PyObject *xp_tensor(const dl_exchange *api, xp_holder *held, uint64_t offset, unsigned ndim, const int64_t *dims,
                    dl_dtype dtype, uint32_t itemsize);

#endif
