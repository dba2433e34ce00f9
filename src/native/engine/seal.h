/* The keyed hash that seals handles and messages, and the reading of sealed bytes. None of them is trusted. */
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
/* Whether these are a handle that was sealed under the key, and that says nothing which this version does not know. Its
 * boot is the caller's to check. */
bool xp_handle_good(const xp_key *k, const xp_handle *h);

/* The content of a message. The pointers point into its bytes, and need not be aligned. */
typedef struct {
    xp_message head;
    const uint8_t *memory, *events, *leaves, *dims, *text;
} xp_parts;
#define XP_EVENT_NBYTES (sizeof(xp_handle) + sizeof(uint64_t)) /* of an event's handle and its point */

/* The places of the parts in a message that begins with this header. False if they do not fill its bytes. */
bool xp_parts_of(const void *raw, size_t nbytes, xp_parts *parts);
/* The seal of a message: of its header, points and descriptions, and of its handles only their own seals, which stand
 * for them. */
void xp_hash_message(const xp_key *k, const xp_parts *parts, uint8_t out[XP_SEAL]);
/* Verify a message. What it says of its arrays is checked once the sizes of their dtypes are known, which its text says. */
bool xp_read_message(const xp_key *k, const void *raw, size_t nbytes, xp_parts *parts);
/* Whether all its arrays name what is there, and lie in their memory. */
bool xp_leaves_good(const xp_parts *parts, const uint32_t *itemsizes, uint32_t dtypes);

/* The first and one-past-last byte of an array's elements, relative to its first element; false where 63 bits do not
 * hold them. `dims` need not be aligned. */
bool xp_extent(const void *dims, unsigned ndim, uint64_t itemsize, int64_t *low, int64_t *high);

#endif
