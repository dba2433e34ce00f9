/* A message of any content, sealed where the first byte says so. What is read of it lies in the bytes, and the
 * elements of arrays that are good lie in their memory. */
#include "../../../src/engine/seal.h"
#include "../c/support.h"

static void mend(const xp_key *k, uint8_t *at, const uint8_t *cookie, uint16_t kind)
{
    xp_handle h;
    memcpy(&h, at, sizeof h);
    memcpy(h.magic, XP_HANDLE_MAGIC, sizeof h.magic);
    memcpy(h.cookie, cookie, sizeof h.cookie);
    h.version = XP_VERSION;
    h.kind = kind;
    h.flags &= XP_HANDLE_FLAGS;
    for (unsigned i = 0; i < sizeof h.backend; i++)
        h.backend[i] &= 0x7f;
    h.entry %= XP_ENTRIES;
    h.pid &= INT32_MAX;
    h.table_fd &= INT32_MAX;
    h.reserved0 = 0;
    memset(h.reserved1, 0, sizeof h.reserved1);
    xp_hash(k, &h, offsetof(xp_handle, seal), h.seal);
    memcpy(at, &h, sizeof h);
}

static void check_leaves(const xp_parts *t, const uint32_t *itemsizes, uint32_t dtypes)
{
    const uint8_t *dims = t->dims;
    for (uint32_t i = 0; i < t->head.arrays; i++) {
        xp_leaf l;
        xp_handle h;
        memcpy(&l, t->leaves + i * sizeof l, sizeof l);
        CHECK(l.memory < t->head.memory && l.event <= t->head.events && l.dtype < dtypes && l.ndim <= XP_ARRAY_DIMS);
        CHECK(dims + 16u * l.ndim <= t->text);
        memcpy(&h, t->memory + l.memory * sizeof h, sizeof h);
        __int128 first = l.offset, last = first + itemsizes[l.dtype];
        bool empty = false;
        for (unsigned d = 0; d < l.ndim; d++) {
            uint64_t length;
            memcpy(&length, dims + 8 * d, 8);
            CHECK(length <= INT64_MAX);
            empty |= length == 0;
        }
        for (unsigned d = 0; d < l.ndim && !empty; d++) {
            int64_t length, stride;
            memcpy(&length, dims + 8 * d, 8);
            memcpy(&stride, dims + 8 * (l.ndim + d), 8);
            __int128 step = ((__int128)length - 1) * stride;
            *(step < 0 ? &first : &last) += step;
        }
        CHECK(empty || (first >= 0 && last <= (__int128)h.nbytes));
        dims += 16u * l.ndim;
    }
    CHECK(dims == t->text);
}

/* The bits of the first byte: seal the whole, its length, its beginning, mend the handles. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t key[32] = {1, 2, 3};
    static const uint32_t itemsizes[] = {4, 1, 0, 8};
    static xp_key k;
    xp_make_key(&k, key, sizeof key);
    xp_message head;
    if (size < 1 + sizeof head + sizeof(xp_handle) + XP_SEAL)
        return 0;
    unsigned fit = *data++;
    size--;
    uint8_t *raw = malloc(size); /* exactly that large: a sanitizer sees what is read beyond */
    CHECK(raw != NULL);
    memcpy(raw, data, size);
    memcpy(&head, raw, sizeof head);
    if (fit & 4) {
        memcpy(head.magic, XP_MESSAGE_MAGIC, sizeof head.magic);
        head.version = XP_MESSAGE_VERSION;
        head.reserved0 = 0;
        head.reserved1 = 0;
        head.memory = 1 + head.memory % 2;
        head.events %= 2;
        head.arrays = 1 + head.arrays % 4;
        head.steps %= 16;
    }
    uint64_t fixed = sizeof head + (uint64_t)head.memory * sizeof(xp_handle) + head.events * XP_EVENT_NBYTES +
                     (uint64_t)head.arrays * sizeof(xp_leaf) + 8ull * head.steps + XP_SEAL;
    if (fit & 2) {
        head.length = (uint32_t)size;
        head.text_nbytes = size >= fixed ? (uint32_t)(size - fixed) : 0;
    }
    memcpy(raw, &head, sizeof head);
    uint8_t *at = raw + sizeof head;
    if ((fit & 12) == 12 && size >= fixed) {
        const uint8_t *cookie = at + offsetof(xp_handle, cookie);
        for (uint32_t i = 0; i < head.memory; i++, at += sizeof(xp_handle))
            mend(&k, at, cookie, XP_KIND_MEMORY);
        for (uint32_t i = 0; i < head.events; i++, at += XP_EVENT_NBYTES) {
            mend(&k, at, cookie, XP_KIND_EVENT);
            memset(at + XP_EVENT_NBYTES - 3, 0, 3); /* a point that events reach */
        }
    }
    xp_parts t;
    uint32_t where;
    if (fit & 1 && xp_parts_of(raw, size, &t))
        xp_hash_message(&k, &t, raw + size - XP_SEAL);
    xp_flaw flaw = xp_read_message(&k, raw, size, NULL, &t, &where);
    CHECK(where <= size - (flaw == XP_FLAWLESS ? 0 : sizeof(xp_handle)));
    if (flaw == XP_FLAWLESS) {
        CHECK(t.head.length == size && t.head.memory && t.head.arrays && t.memory == raw + sizeof t.head);
        CHECK(t.events == t.memory + t.head.memory * sizeof(xp_handle) && t.leaves == t.events + t.head.events * XP_EVENT_NBYTES);
        CHECK(t.dims == t.leaves + t.head.arrays * sizeof(xp_leaf) && t.text == t.dims + 8u * t.head.steps);
        CHECK(t.text + t.head.text_nbytes + XP_SEAL == raw + size);
        if (xp_read_leaves(&t, itemsizes, 4, &where) == XP_FLAWLESS)
            check_leaves(&t, itemsizes, 4);
        else
            CHECK(where <= t.head.arrays);
        size_t handles = t.head.memory * sizeof(xp_handle);
        uint8_t *moved = malloc(size);
        CHECK(moved != NULL);
        memcpy(moved, raw, size);
        EQUAL(xp_move_message(&k, moved, size, t.memory, handles - 1), XP_MOVE_OTHER_COUNT);
        EQUAL(xp_move_message(&k, moved, size, t.memory, handles), XP_MOVE_GOOD);
        EQUAL(memcmp(moved, raw, size), 0); /* over the same handles it is the same */
        free(moved);
        raw[data[0] % size] ^= 1; /* any byte that is altered is noticed */
        CHECK(xp_read_message(&k, raw, size, NULL, &t, &where) != XP_FLAWLESS);
    }
    free(raw);
    return 0;
}
