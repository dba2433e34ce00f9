/* The keyed hash that seals handles and array handles, and the reading of sealed bytes. None of them is trusted. */
#ifndef XP_SEAL_H
#define XP_SEAL_H

#include "xp.h"

/* BLAKE2b with 32 bytes of result (RFC 7693) under one key. It never changes once it is made. */
typedef struct {
    uint64_t fresh[8], keyed[8]; /* before and after the block of the key */
    uint8_t block[128];
} xp_key;
void xp_make_key(xp_key *k, const void *key, size_t nbytes); /* of 1 to 64 bytes */
void xp_hash(const xp_key *k, const void *data, size_t nbytes, uint8_t out[XP_SEAL]);
/* The seal of an array handle of `nbytes`, the seal's included: of all of it, but of its handles only their own seals,
 * which stand for them. False: it is too short. */
bool xp_hash_array(const xp_key *k, const void *raw, size_t nbytes, unsigned handles, uint8_t out[XP_SEAL]);

/* Whether these are a handle that was sealed under the key, and that says nothing which this version does not know. Its
 * boot is the caller's to check. */
bool xp_handle_good(const xp_key *k, const xp_handle *h);

/* What sealed bytes say of an array. `dims` (shape, then strides) and `text` (the dtype) lie in those bytes. */
typedef struct {
    xp_array head;
    xp_handle memory, event;
    bool has_event;
    bool fits; /* the elements lie in the memory's range, and their shape is one that an array can have */
    const uint8_t *dims, *text;
} xp_array_parts;
bool xp_read_array(const xp_key *k, const void *raw, size_t nbytes, xp_array_parts *parts);

/* What sealed bytes say of a tree; the pointers lie in those bytes, and need not be aligned. What it says of its arrays
 * is checked once the sizes of their dtypes are known: they are in the text. */
typedef struct {
    xp_tree head;
    const uint8_t *memory, *events, *leaves, *dims, *text;
} xp_tree_parts;
bool xp_read_tree(const xp_key *k, const void *raw, size_t nbytes, xp_tree_parts *parts);
/* Whether all its arrays name what is there, and lie in their memory. */
bool xp_leaves_good(const xp_tree_parts *parts, const uint32_t *itemsizes, uint32_t dtypes);

/* Whether an array of these lengths and strides can be, and lies in so many bytes. */
bool xp_fits(const void *dims, unsigned ndim, uint64_t itemsize, uint64_t offset, uint64_t nbytes);

/* The first and one-past-last byte of an array's elements, relative to its first element; false where 63 bits do not
 * hold them. `dims` need not be aligned. */
bool xp_extent(const void *dims, unsigned ndim, uint64_t itemsize, int64_t *low, int64_t *high);

#endif
