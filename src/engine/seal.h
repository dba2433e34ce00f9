/* The keyed hash that seals handles and messages, and the parsing of sealed bytes. None of the bytes are trusted. */
#ifndef XP_SEAL_H
#define XP_SEAL_H

#include "xp.h"

/* key.c: the raw bytes of the user's key, from a file that only this user can read. Returns one of these. `detail`:
 * errno of UNREADABLE, the user of OTHER_USER, the mode of OPEN_TO_OTHERS, the size of SIZE (at most one byte too many
 * is counted). */
#define XP_KEY_NBYTES 32
enum { XP_KEY_GOOD, XP_KEY_UNREADABLE, XP_KEY_NO_FILE, XP_KEY_OTHER_USER, XP_KEY_OPEN_TO_OTHERS, XP_KEY_SIZE };
int xp_read_key(const char *path, uint8_t *key, uint32_t *detail);

/* BLAKE2b with a result of 32 bytes (RFC 7693) under one key. It never changes once it is made. */
typedef struct {
    uint64_t fresh[8], keyed[8]; /* before and after the block of the key */
    uint8_t block[128];
} xp_key;
void xp_make_key(xp_key *k, const void *key, size_t nbytes); /* of 1 to 64 bytes */
void xp_hash(const xp_key *k, const void *data, size_t nbytes, uint8_t out[XP_SEAL]);

/* Why bytes are no handle or no message, in the order of the checks; a handle in a message is checked before its
 * MESSAGE_KIND. HANDLE_VALUES, MESSAGE_VALUES: this version does not know a value. MESSAGE_HANDLE: they are a good
 * handle. MESSAGE_KIND, MESSAGE_EXPORTER: a handle of another kind than is due, or of another exporter than the
 * first's. MESSAGE_POINT: one that no event reaches. LEAF_…: an array names a part that does not exist, no array has
 * such lengths and strides, or it does not lie in its memory; LEAF_REST: lengths and strides of no array are left. */
#define XP_EVERY_FLAW(X)                                                                                              \
    X(HANDLE_LENGTH) X(HANDLE_MAGIC) X(HANDLE_VERSION) X(HANDLE_SEAL) X(HANDLE_VALUES) X(HANDLE_BOOT)                 \
    X(MESSAGE_HANDLE) X(MESSAGE_MAGIC) X(MESSAGE_LENGTH) X(MESSAGE_VERSION) X(MESSAGE_SEAL) X(MESSAGE_VALUES)         \
    X(MESSAGE_KIND) X(MESSAGE_EXPORTER) X(MESSAGE_POINT) X(LEAF_PART) X(LEAF_SHAPE) X(LEAF_BYTES) X(LEAF_REST)

typedef enum {
    XP_FLAWLESS,
#define XP_FLAW(name) XP_FLAW_##name,
    XP_EVERY_FLAW(XP_FLAW)
#undef XP_FLAW
} xp_flaw;

/* Verify the bytes of a handle, and copy them to `h`. `boot`: the id of the boot, or NULL for any. */
xp_flaw xp_read_handle(const xp_key *k, const void *raw, size_t nbytes, const uint8_t *boot, xp_handle *h);

/* The content of a message. The pointers point into its bytes, and need not be aligned. */
typedef struct {
    xp_message head;
    const uint8_t *memory, *events, *leaves, *dims, *text;
} xp_parts;
#define XP_EVENT_NBYTES (sizeof(xp_handle) + sizeof(uint64_t)) /* of an event's handle and its point */

/* Find the parts of a message that begins with this header. Returns false if they do not fill its bytes. */
bool xp_parts_of(const void *raw, size_t nbytes, xp_parts *parts);
/* The seal of a message covers its header, points and descriptions. Its handles are covered through their own seals. */
void xp_hash_message(const xp_key *k, const xp_parts *parts, uint8_t out[XP_SEAL]);
/* Verify a message. Its arrays are checked once the sizes of their dtypes are known, which are in its text. `at`: where
 * the handle begins that has the flaw, or 0. `boot`: as for handles. */
xp_flaw xp_read_message(const xp_key *k, const void *raw, size_t nbytes, const uint8_t *boot, xp_parts *parts,
                        uint32_t *at);
/* Seal a message of these bytes, whose last ones are the seal. Returns false if its parts do not fill them. */
bool xp_seal_message(const xp_key *k, void *raw, size_t nbytes);
/* Put other memory handles, of so many bytes, into a sealed message, and seal it anew. */
enum { XP_MOVE_GOOD, XP_MOVE_NOT_SEALED /* under this key */, XP_MOVE_OTHER_COUNT /* of handles */ };
int xp_move_message(const xp_key *k, void *raw, size_t nbytes, const void *handles, size_t handles_nbytes);
/* Check that all its arrays name existing parts, and lie in their memory. `leaf`: the first that does not. */
xp_flaw xp_read_leaves(const xp_parts *parts, const uint32_t *itemsizes, uint32_t dtypes, uint32_t *leaf);

/* The first and one-past-last byte of an array's elements, relative to its first element. Returns false if they
 * exceed 63 bits. `dims` need not be aligned. */
bool xp_extent(const void *dims, unsigned ndim, uint64_t itemsize, int64_t *low, int64_t *high);

#endif
