#include "seal.h"

#if defined __x86_64__ && !defined XP_WORDS /* for tests: the code for machines without AVX2 */
#define XP_ROWS __attribute__((target("avx2")))
#include <immintrin.h>
#endif

/* --- BLAKE2b ------------------------------------------------------------------------------------------------------ */

static const uint64_t start[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

#define ROTATE(x, n) ((x) >> (n) | (x) << (64 - (n)))
#define MIX(a, b, c, d, x, y)                                                                                         \
    a += b + (x);                                                                                                     \
    d = ROTATE(d ^ a, 32);                                                                                            \
    c += d;                                                                                                           \
    b = ROTATE(b ^ c, 24);                                                                                            \
    a += b + (y);                                                                                                     \
    d = ROTATE(d ^ a, 16);                                                                                            \
    c += d;                                                                                                           \
    b = ROTATE(b ^ c, 63);

/* Which words of the message each round takes. The first two rounds are repeated at the end. */
static const uint8_t order[12][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
};

/* `total`: bytes so far, including the key's block and these */
static void compress_words(uint64_t h[8], const uint8_t *block, uint64_t total, bool last)
{
    uint64_t m[16];
    memcpy(m, block, sizeof m); /* little-endian, like the rest of the layout */
    uint64_t v[16] = {h[0],     h[1],     h[2],     h[3],     h[4],             h[5],     h[6],     h[7],
                      start[0], start[1], start[2], start[3], start[4] ^ total, start[5], start[6], start[7]};
    if (last)
        v[14] = ~v[14];
    for (unsigned round = 0; round < 12; round++) {
        const uint8_t *w = order[round];
        MIX(v[0], v[4], v[8], v[12], m[w[0]], m[w[1]])
        MIX(v[1], v[5], v[9], v[13], m[w[2]], m[w[3]])
        MIX(v[2], v[6], v[10], v[14], m[w[4]], m[w[5]])
        MIX(v[3], v[7], v[11], v[15], m[w[6]], m[w[7]])
        MIX(v[0], v[5], v[10], v[15], m[w[8]], m[w[9]])
        MIX(v[1], v[6], v[11], v[12], m[w[10]], m[w[11]])
        MIX(v[2], v[7], v[8], v[13], m[w[12]], m[w[13]])
        MIX(v[3], v[4], v[9], v[14], m[w[14]], m[w[15]])
    }
    for (unsigned i = 0; i < 8; i++)
        h[i] ^= v[i] ^ v[i + 8];
}

#ifdef XP_ROWS
XP_ROWS static inline __m256i load(const uint64_t *row) { return _mm256_loadu_si256((const __m256i *)row); }

XP_ROWS static inline __m256i words(const uint64_t *m, const uint8_t *w)
{
    return _mm256_set_epi64x((long long)m[w[6]], (long long)m[w[4]], (long long)m[w[2]], (long long)m[w[0]]);
}

/* MIX of the four columns at once. */
XP_ROWS static inline void mix(__m256i v[4], const uint64_t *m, const uint8_t *w)
{
    const __m256i by24 = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10));
    const __m256i by16 = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9));
    v[0] = _mm256_add_epi64(_mm256_add_epi64(v[0], v[1]), words(m, w));
    v[3] = _mm256_shuffle_epi32(_mm256_xor_si256(v[3], v[0]), _MM_SHUFFLE(2, 3, 0, 1));
    v[2] = _mm256_add_epi64(v[2], v[3]);
    v[1] = _mm256_shuffle_epi8(_mm256_xor_si256(v[1], v[2]), by24);
    v[0] = _mm256_add_epi64(_mm256_add_epi64(v[0], v[1]), words(m, w + 1));
    v[3] = _mm256_shuffle_epi8(_mm256_xor_si256(v[3], v[0]), by16);
    v[2] = _mm256_add_epi64(v[2], v[3]);
    v[1] = _mm256_xor_si256(v[1], v[2]);
    v[1] = _mm256_or_si256(_mm256_srli_epi64(v[1], 63), _mm256_add_epi64(v[1], v[1]));
}

/* The same in rows of four words: half the instructions, and less code. */
XP_ROWS static void compress_rows(uint64_t h[8], const uint8_t *block, uint64_t total, bool last)
{
    uint64_t m[16];
    memcpy(m, block, sizeof m);
    const __m256i low = load(h), high = load(h + 4);
    __m256i v[4] = {low, high, load(start), load(start + 4)};
    v[3] = _mm256_xor_si256(v[3], _mm256_set_epi64x(0, -(long long)last, 0, (long long)total));
    for (unsigned round = 0; round < 12; round++) {
        mix(v, m, order[round]);
        v[1] = _mm256_permute4x64_epi64(v[1], _MM_SHUFFLE(0, 3, 2, 1)); /* the diagonals become columns, */
        v[2] = _mm256_permute4x64_epi64(v[2], _MM_SHUFFLE(1, 0, 3, 2));
        v[3] = _mm256_permute4x64_epi64(v[3], _MM_SHUFFLE(2, 1, 0, 3));
        mix(v, m, order[round] + 8);
        v[1] = _mm256_permute4x64_epi64(v[1], _MM_SHUFFLE(2, 1, 0, 3)); /* and diagonals again */
        v[2] = _mm256_permute4x64_epi64(v[2], _MM_SHUFFLE(1, 0, 3, 2));
        v[3] = _mm256_permute4x64_epi64(v[3], _MM_SHUFFLE(0, 3, 2, 1));
    }
    _mm256_storeu_si256((__m256i *)h, _mm256_xor_si256(low, _mm256_xor_si256(v[0], v[2])));
    _mm256_storeu_si256((__m256i *)(h + 4), _mm256_xor_si256(high, _mm256_xor_si256(v[1], v[3])));
}

static void compress(uint64_t h[8], const uint8_t *block, uint64_t total, bool last)
{
    (__builtin_cpu_supports("avx2") ? compress_rows : compress_words)(h, block, total, last);
}
#else
#define compress compress_words
#endif

void xp_make_key(xp_key *k, const void *key, size_t nbytes)
{
    memset(k->block, 0, sizeof k->block);
    memcpy(k->block, key, nbytes);
    memcpy(k->fresh, start, sizeof start);
    k->fresh[0] ^= 0x01010000 ^ (uint64_t)nbytes << 8 ^ XP_SEAL;
    memcpy(k->keyed, k->fresh, sizeof k->keyed);
    compress(k->keyed, k->block, sizeof k->block, false);
}

/* A hash that is computed piece by piece. */
typedef struct {
    const xp_key *k;
    uint64_t h[8], total;
    size_t used;
    uint8_t block[128];
} hasher;

static void begin(hasher *s, const xp_key *k)
{
    s->k = k;
    s->total = sizeof s->block;
    s->used = 0;
    memcpy(s->h, k->keyed, sizeof s->h);
}

static void add(hasher *s, const void *data, size_t nbytes)
{
    for (size_t at = 0, n; at < nbytes; at += n, s->used += n) {
        if (s->used == sizeof s->block) { /* the last one is handled separately */
            compress(s->h, s->block, s->total += sizeof s->block, false);
            s->used = 0;
        }
        n = nbytes - at < sizeof s->block - s->used ? nbytes - at : sizeof s->block - s->used;
        memcpy(s->block + s->used, (const uint8_t *)data + at, n);
    }
}

static void end(hasher *s, uint8_t out[XP_SEAL])
{
    if (s->used) {
        memset(s->block + s->used, 0, sizeof s->block - s->used);
        compress(s->h, s->block, s->total + s->used, true);
    } else {
        memcpy(s->h, s->k->fresh, sizeof s->h);
        compress(s->h, s->k->block, s->total, true); /* of no data: the key's block is the last */
    }
    memcpy(out, s->h, XP_SEAL);
}

void xp_hash(const xp_key *k, const void *data, size_t nbytes, uint8_t out[XP_SEAL])
{
    hasher s;
    begin(&s, k);
    add(&s, data, nbytes);
    end(&s, out);
}

/* Takes the same time for any wrong seal, so that nobody learns how much of a forged seal is right. */
static bool same(const uint8_t *seal, const uint8_t *right)
{
    uint8_t wrong = 0;
    for (unsigned i = 0; i < XP_SEAL; i++)
        wrong |= right[i] ^ seal[i];
    return wrong == 0;
}

/* --- handles ------------------------------------------------------------------------------------------------------ */

xp_flaw xp_read_handle(const xp_key *k, const void *raw, size_t nbytes, const uint8_t *boot, xp_handle *h)
{
    static const uint8_t nothing[sizeof h->reserved1];
    uint8_t right[XP_SEAL], high = 0; /* the backend's name is ASCII */
    if (nbytes != sizeof *h)
        return XP_FLAW_HANDLE_LENGTH;
    memcpy(h, raw, sizeof *h);
    if (memcmp(h->magic, XP_HANDLE_MAGIC, sizeof h->magic) != 0)
        return XP_FLAW_HANDLE_MAGIC;
    if (h->version != XP_VERSION)
        return XP_FLAW_HANDLE_VERSION;
    xp_hash(k, h, offsetof(xp_handle, seal), right);
    if (!same(h->seal, right))
        return XP_FLAW_HANDLE_SEAL;
    for (unsigned i = 0; i < sizeof h->backend; i++)
        high |= h->backend[i];
    if (h->kind < XP_KIND_MEMORY || h->kind > XP_KIND_EVENT || (h->flags & ~XP_HANDLE_FLAGS) || high >= 0x80 ||
        h->entry >= XP_ENTRIES || (h->pid | h->table_fd) > INT32_MAX || h->reserved0 ||
        memcmp(h->reserved1, nothing, sizeof nothing) != 0)
        return XP_FLAW_HANDLE_VALUES;
    return boot && memcmp(h->boot_id, boot, sizeof h->boot_id) != 0 ? XP_FLAW_HANDLE_BOOT : XP_FLAWLESS;
}

/* --- arrays ------------------------------------------------------------------------------------------------------- */

static uint64_t dim_at(const void *dims, unsigned i)
{
    uint64_t found;
    memcpy(&found, (const uint8_t *)dims + i * sizeof found, sizeof found);
    return found;
}

bool xp_extent(const void *dims, unsigned ndim, uint64_t itemsize, int64_t *low, int64_t *high)
{
    int64_t least = 0, most = (int64_t)itemsize, step;
    bool empty = false;
    for (unsigned i = 0; i < ndim; i++)
        empty |= dim_at(dims, i) == 0;
    *low = *high = 0;
    if (empty)
        return true;
    for (unsigned i = 0; i < ndim; i++) {
        uint64_t length = dim_at(dims, i);
        int64_t stride = (int64_t)dim_at(dims, ndim + i);
        if (length > INT64_MAX || __builtin_mul_overflow((int64_t)length - 1, stride, &step) ||
            (step < 0 ? __builtin_add_overflow(least, step, &least) : __builtin_add_overflow(most, step, &most)))
            return false;
    }
    *low = least;
    *high = most;
    return true;
}

/* Check that an array of these lengths and strides is possible, and fits in so many bytes. */
static xp_flaw fits(const void *dims, unsigned ndim, uint64_t itemsize, uint64_t offset, uint64_t nbytes)
{
    int64_t low, high, total = (int64_t)itemsize, first, last;
    for (unsigned i = 0; i < ndim; i++) {
        uint64_t length = dim_at(dims, i);
        if (length && (length > INT64_MAX || __builtin_mul_overflow(total, (int64_t)length, &total)))
            return XP_FLAW_LEAF_SHAPE;
    }
    if (!xp_extent(dims, ndim, itemsize, &low, &high))
        return XP_FLAW_LEAF_SHAPE;
    return offset <= INT64_MAX && !__builtin_add_overflow((int64_t)offset, low, &first) && first >= 0 &&
                   !__builtin_add_overflow((int64_t)offset, high, &last) && (uint64_t)last <= nbytes
               ? XP_FLAWLESS
               : XP_FLAW_LEAF_BYTES;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

#define MESSAGE_LEAST (sizeof(xp_message) + sizeof(xp_handle) + XP_SEAL)

bool xp_parts_of(const void *raw, size_t nbytes, xp_parts *m)
{
    const uint8_t *at = raw;
    if (nbytes < MESSAGE_LEAST || nbytes > XP_MESSAGE_MOST)
        return false;
    memcpy(&m->head, at, sizeof m->head);
    const xp_message *h = &m->head;
    uint64_t due = sizeof *h + (uint64_t)h->memory * sizeof(xp_handle) + (uint64_t)h->events * XP_EVENT_NBYTES +
                   (uint64_t)h->arrays * sizeof(xp_leaf) + 8ull * h->steps + h->text_nbytes + XP_SEAL;
    if (due != nbytes)
        return false;
    m->memory = at + sizeof *h;
    m->events = m->memory + (size_t)h->memory * sizeof(xp_handle);
    m->leaves = m->events + (size_t)h->events * XP_EVENT_NBYTES;
    m->dims = m->leaves + (size_t)h->arrays * sizeof(xp_leaf);
    m->text = m->dims + 8 * (size_t)h->steps;
    return true;
}

void xp_hash_message(const xp_key *k, const xp_parts *m, uint8_t out[XP_SEAL])
{
    hasher s;
    begin(&s, k);
    add(&s, &m->head, sizeof m->head);
    for (uint32_t i = 0; i < m->head.memory; i++)
        add(&s, m->memory + (size_t)i * sizeof(xp_handle) + offsetof(xp_handle, seal), XP_SEAL);
    for (uint32_t i = 0; i < m->head.events; i++) /* its point follows its seal */
        add(&s, m->events + (size_t)i * XP_EVENT_NBYTES + offsetof(xp_handle, seal), XP_SEAL + sizeof(uint64_t));
    add(&s, m->leaves, (size_t)(m->text - m->leaves) + m->head.text_nbytes);
    end(&s, out);
}

/* Check the handle in a message at `raw + at`. */
static xp_flaw read_part(const xp_key *k, const uint8_t *raw, uint32_t at, const uint8_t *boot, uint16_t kind)
{
    const uint8_t *first = raw + sizeof(xp_message) + offsetof(xp_handle, cookie);
    xp_handle h;
    xp_flaw flaw = xp_read_handle(k, raw + at, sizeof h, boot, &h);
    return flaw                                          ? flaw
           : h.kind != kind                              ? XP_FLAW_MESSAGE_KIND
           : memcmp(h.cookie, first, sizeof h.cookie) != 0 ? XP_FLAW_MESSAGE_EXPORTER
                                                         : XP_FLAWLESS;
}

xp_flaw xp_read_message(const xp_key *k, const void *raw, size_t nbytes, const uint8_t *boot, xp_parts *m, uint32_t *at)
{
    const xp_message *h = &m->head;
    uint8_t right[XP_SEAL];
    xp_handle handle;
    xp_flaw flaw = XP_FLAWLESS;
    *at = 0;
    if (nbytes == sizeof handle && memcmp(raw, XP_MESSAGE_MAGIC, sizeof h->magic) != 0) {
        flaw = xp_read_handle(k, raw, nbytes, boot, &handle);
        return flaw ? flaw : XP_FLAW_MESSAGE_HANDLE;
    }
    if (memcmp(raw, XP_MESSAGE_MAGIC, nbytes < sizeof h->magic ? nbytes : sizeof h->magic) != 0)
        return XP_FLAW_MESSAGE_MAGIC;
    if (nbytes < MESSAGE_LEAST || nbytes > XP_MESSAGE_MOST)
        return XP_FLAW_MESSAGE_LENGTH;
    memcpy(&m->head, raw, sizeof m->head);
    if (h->version != XP_MESSAGE_VERSION)
        return XP_FLAW_MESSAGE_VERSION;
    if (!xp_parts_of(raw, nbytes, m) || h->length != nbytes)
        return XP_FLAW_MESSAGE_SEAL;
    xp_hash_message(k, m, right);
    if (!same(m->text + h->text_nbytes, right))
        return XP_FLAW_MESSAGE_SEAL;
    if (h->reserved0 || h->reserved1 || !h->memory || !h->arrays)
        return XP_FLAW_MESSAGE_VALUES;
    *at = sizeof *h;
    for (uint32_t i = 0; i < h->memory; i++, *at += sizeof handle)
        if ((flaw = read_part(k, raw, *at, boot, XP_KIND_MEMORY)))
            return flaw;
    for (uint32_t i = 0; i < h->events; i++, *at += XP_EVENT_NBYTES) {
        uint64_t point;
        memcpy(&point, (const uint8_t *)raw + *at + sizeof handle, sizeof point);
        if ((flaw = read_part(k, raw, *at, boot, XP_KIND_EVENT)) || point > XP_POINT_MAX)
            return flaw ? flaw : XP_FLAW_MESSAGE_POINT;
    }
    return XP_FLAWLESS;
}

bool xp_seal_message(const xp_key *k, void *raw, size_t nbytes)
{
    xp_parts m;
    if (!xp_parts_of(raw, nbytes, &m))
        return false;
    xp_hash_message(k, &m, (uint8_t *)raw + nbytes - XP_SEAL);
    return true;
}

int xp_move_message(const xp_key *k, void *raw, size_t nbytes, const void *handles, size_t handles_nbytes)
{
    xp_parts m;
    uint32_t at;
    if (xp_read_message(k, raw, nbytes, NULL, &m, &at))
        return XP_MOVE_NOT_SEALED;
    if (m.head.memory * sizeof(xp_handle) != handles_nbytes)
        return XP_MOVE_OTHER_COUNT;
    memcpy((uint8_t *)raw + sizeof m.head, handles, handles_nbytes);
    return xp_seal_message(k, raw, nbytes) ? XP_MOVE_GOOD : XP_MOVE_NOT_SEALED;
}

xp_flaw xp_read_leaves(const xp_parts *t, const uint32_t *itemsizes, uint32_t dtypes, uint32_t *leaf)
{
    uint64_t step = 0;
    for (*leaf = 0; *leaf < t->head.arrays; ++*leaf) {
        xp_leaf l;
        xp_handle h;
        memcpy(&l, t->leaves + (size_t)*leaf * sizeof l, sizeof l);
        if (l.memory >= t->head.memory || l.event > t->head.events || l.dtype >= dtypes || l.ndim > XP_ARRAY_DIMS ||
            l.reserved || step + 2u * l.ndim > t->head.steps)
            return XP_FLAW_LEAF_PART;
        memcpy(&h.nbytes, t->memory + (size_t)l.memory * sizeof h + offsetof(xp_handle, nbytes), sizeof h.nbytes);
        xp_flaw flaw = fits(t->dims + 8 * step, l.ndim, itemsizes[l.dtype], l.offset, h.nbytes);
        if (flaw)
            return flaw;
        step += 2u * l.ndim;
    }
    return step == t->head.steps ? XP_FLAWLESS : XP_FLAW_LEAF_REST;
}
