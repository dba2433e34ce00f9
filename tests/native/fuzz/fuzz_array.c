/* An array handle of any content, sealed where the first byte says so. What is read of it lies in the bytes, and the
 * elements of what fits lie in the memory's range. */
#include "../../../src/native/engine/seal.h"
#include "../c/support.h"

static void mend(const xp_key *k, uint8_t *at, bool wholly, uint16_t kind)
{
    xp_handle h;
    memcpy(&h, at, sizeof h);
    if (wholly) {
        memcpy(h.magic, XP_HANDLE_MAGIC, sizeof h.magic);
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
    }
    xp_hash(k, &h, offsetof(xp_handle, seal), h.seal);
    memcpy(at, &h, sizeof h);
}

static void check_fit(const xp_array_parts *a)
{
    __int128 first = a->head.offset, last = first + a->head.itemsize;
    uint64_t length;
    int64_t stride;
    bool empty = false;
    for (unsigned i = 0; i < a->head.ndim; i++) {
        memcpy(&length, a->dims + 8 * i, 8);
        CHECK(length <= INT64_MAX);
        empty |= length == 0;
    }
    for (unsigned i = 0; i < a->head.ndim && !empty; i++) {
        memcpy(&length, a->dims + 8 * i, 8);
        memcpy(&stride, a->dims + 8 * (a->head.ndim + i), 8);
        __int128 step = ((__int128)length - 1) * stride;
        *(step < 0 ? &first : &last) += step;
    }
    CHECK(empty || (first >= 0 && last <= (__int128)a->memory.nbytes));
}

/* The bits of the first byte: seal the whole, its length, its beginning, mend the memory's handle, the event's. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t key[32] = {1, 2, 3};
    static xp_key k;
    xp_make_key(&k, key, sizeof key);
    xp_array head;
    if (size < 1 + sizeof head + sizeof(xp_handle) + XP_SEAL)
        return 0;
    unsigned fit = *data++;
    size--;
    uint8_t *raw = malloc(size); /* exactly that large: a sanitizer sees what is read beyond */
    CHECK(raw != NULL);
    memcpy(raw, data, size);
    memcpy(&head, raw, sizeof head);
    if (fit & 4) {
        memcpy(head.magic, XP_ARRAY_MAGIC, sizeof head.magic);
        head.version = XP_ARRAY_VERSION;
        head.flags &= XP_ARRAY_EVENT;
        head.reserved = 0;
        head.ndim %= 8;
        head.point &= XP_POINT_MAX;
    }
    size_t fixed = sizeof head + (head.flags & 1 ? 2 : 1) * sizeof(xp_handle) + 16u * head.ndim + XP_SEAL;
    if (fit & 2) {
        head.length = (uint32_t)size;
        if (size >= fixed)
            head.text_nbytes = (uint16_t)(size - fixed);
    }
    memcpy(raw, &head, sizeof head);
    mend(&k, raw + sizeof head, fit & 8, XP_KIND_MEMORY);
    if ((head.flags & 1) && size >= fixed) {
        if (fit & 16)
            memcpy(raw + sizeof head + sizeof(xp_handle) + offsetof(xp_handle, cookie),
                   raw + sizeof head + offsetof(xp_handle, cookie), XP_COOKIE);
        mend(&k, raw + sizeof head + sizeof(xp_handle), fit & 8, XP_KIND_EVENT);
    }
    if (fit & 1)
        xp_hash_array(&k, raw, size, head.flags & XP_ARRAY_EVENT ? 2 : 1, raw + size - XP_SEAL);
    xp_array_parts a;
    if (xp_read_array(&k, raw, size, &a)) {
        CHECK(a.head.length == size && a.head.ndim <= XP_ARRAY_DIMS && a.memory.kind == XP_KIND_MEMORY);
        CHECK(a.memory.entry < XP_ENTRIES && (!a.has_event || a.event.kind == XP_KIND_EVENT));
        CHECK(a.dims >= raw && a.text == a.dims + 16u * a.head.ndim);
        CHECK(a.text + a.head.text_nbytes + XP_SEAL == raw + size);
        if (a.fits)
            check_fit(&a);
        raw[data[0] % size] ^= 1; /* any byte that is altered is noticed */
        CHECK(!xp_read_array(&k, raw, size, &a));
    }
    free(raw);
    return 0;
}
