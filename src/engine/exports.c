/* What this process exports: reserving, publishing and ending exports, and finding them by their handles. */
#include "exports.h"

#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

static void lock(void) { pthread_mutex_lock(&xp_exports_mu); }
static void unlock(void) { pthread_mutex_unlock(&xp_exports_mu); }

/* --- templates ---------------------------------------------------------------------------------------------------- */

bool xp_template_fill(xp_template *p, const xp_exports *t, const xp_entry *common, const char *names, const int *fds,
                      size_t fd_count, const void *payload, size_t payload_nbytes, xp_offer *offer)
{
    if (fd_count > XP_ENTRY_FDS || payload_nbytes > sizeof p->e.payload)
        return false;
    p->h = t->common;
    memcpy(p->h.backend, names, sizeof p->h.backend);
    memcpy(p->h.device_uuid, names + sizeof p->h.backend, sizeof p->h.device_uuid);
    p->h.kind = (uint16_t)common->kind;
    p->h.object = common->object;
    p->h.exposed_nbytes = common->exposed_nbytes;
    p->e = *common;
    p->e.flags |= offer ? XP_ENTRY_ON_DEMAND : 0;
    p->e.fd_count = offer ? offer->count : (uint32_t)fd_count;
    memset(p->e.fds, 0xff, sizeof p->e.fds);
    memcpy(p->e.fds, fds, fd_count * sizeof *fds);
    p->e.payload_nbytes = (uint32_t)payload_nbytes;
    memcpy(p->e.payload, payload, payload_nbytes);
    p->offer = offer;
    return true;
}

bool xp_template_like(xp_template *p, const xp_exports *t, const xp_template *from, uint64_t serial, uint64_t nbytes,
                      const void *payload, size_t payload_nbytes)
{
    if (from->e.fd_count || from->offer || payload_nbytes > sizeof from->e.payload ||
        memcmp(from->h.cookie, t->common.cookie, sizeof t->common.cookie) != 0)
        return false;
    p->h = from->h;
    p->e = from->e;
    p->h.object = p->e.object = serial;
    p->h.exposed_nbytes = p->e.exposed_nbytes = p->e.nbytes = nbytes;
    p->e.payload_nbytes = (uint32_t)payload_nbytes;
    memset(p->e.payload, 0, sizeof p->e.payload);
    memcpy(p->e.payload, payload, payload_nbytes);
    return true;
}

uint64_t xp_exports_new_object(xp_exports *t) { return __atomic_add_fetch(&t->objects, 1, __ATOMIC_RELAXED); }

/* --- reserving ---------------------------------------------------------------------------------------------------- */

static xp_entry *entry_of(xp_exports *t, const xp_export *e)
{
    return (xp_entry *)(t->base + XP_TABLE_HEADER) + e->entry;
}

/* A child has the parent's table mapped. */
static bool is_writable(const xp_exports *t) { return t->d->born == XP_RELAXED(&xp_fork_count); }

static void store_deadline(xp_exports *t, xp_export *e, uint64_t deadline)
{
    e->deadline = deadline;
    XP_STORE((uint64_t *)(t->base + XP_TABLE_DEADLINES) + e->entry, deadline);
}

/* Random bytes that are used only once. Many are fetched at a time, since a system call takes long. Called with the
 * lock. Returns 0 or errno. */
static int take_nonce(xp_exports *t, uint8_t *nonce)
{
    if (t->nonces_left == 0) {
        if (getrandom(t->nonces, sizeof t->nonces, 0) < 0) /* so few bytes come whole, or not at all */
            return errno;
        t->nonces_left = sizeof t->nonces / sizeof *t->nonces;
    }
    memcpy(nonce, t->nonces[--t->nonces_left], XP_NONCE);
    return 0;
}

/* Returns false without memory. */
static bool copy_offer(xp_export *e)
{
    const xp_offer *from = e->template->offer;
    size_t nbytes = from ? sizeof *from + from->count * sizeof *from->objects : 0;
    if (from == NULL)
        return true;
    if ((e->offer = malloc(nbytes)) == NULL)
        return false;
    memcpy(e->offer, from, nbytes);
    e->offer->entry = e->entry;
    e->offer->generation = e->generation;
    return true;
}

static void seal_handle(xp_export *e, const xp_key *key, uint32_t flags, const uint8_t *nonce, xp_handle *h)
{
    *h = e->template->h;
    memcpy(h->nonce, nonce, sizeof h->nonce);
    h->flags = flags & XP_HANDLE_FLAGS;
    h->entry = e->entry;
    h->generation = e->generation;
    h->offset = e->offset;
    h->nbytes = e->nbytes;
    xp_hash(key, h, offsetof(xp_handle, seal), h->seal);
    memcpy(e->seal, h->seal, sizeof e->seal);
}

/* The entry stays dead: the generation is stored when the export is published, and until then the reason for the end
 * of the entry's last export can still be reported. An importer may be reading the entry with a handle of that one. */
static void write_entry(xp_exports *t, const xp_export *e, uint32_t flags, const uint8_t *nonce)
{
    xp_entry made = e->template->e;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    made.flags |= flags;
    made.slot = e->slot;
    made.since = (uint32_t)now.tv_sec;
    memcpy(made.nonce, nonce, sizeof made.nonce);
    xp_write_entry(entry_of(t, e), &made);
}

/* All that may fail. */
static int reserve(xp_exports *t, const xp_key *key, xp_export *e, int opens, uint64_t deadline, bool block,
                   xp_handle *h, int *error)
{
    uint32_t flags = e->flags | (opens < 0 ? 0 : XP_ENTRY_COUNTED);
    uint8_t nonce[XP_NONCE];
    uint32_t entry;
    if (!xp_usable(t->d))
        return XP_EXPORT_UNUSABLE;
    int code = xp_entry_take(t, block, &entry);
    if (code != XP_EXPORT_GOOD)
        return code;
    e->entry = entry;
    lock();
    *error = take_nonce(t, nonce);
    e->generation = ++t->generation;
    unlock();
    if (*error)
        return XP_EXPORT_NO_RANDOM;
    if (!copy_offer(e))
        return XP_EXPORT_NO_MEMORY;
    if (xp_marked(t->d, entry))
        xp_clear_marks(t->d, entry);
    seal_handle(e, key, flags, nonce, h);
    write_entry(t, e, flags, nonce);
    if (flags & (XP_ENTRY_COUNTED | XP_ENTRY_PICKLED))
        xp_set_opens(t->d, entry, opens < 0 ? 0 : opens);
    store_deadline(t, e, deadline);
    return XP_EXPORT_GOOD;
}

bool xp_export_reserve(xp_exports *t, const xp_key *key, xp_export *e, int opens, uint64_t deadline, bool block,
                       xp_handle *h, xp_export_error *error)
{
    *error = (xp_export_error){.code = XP_EXPORT_RESERVED_BEFORE, .entry = XP_ENTRIES};
    if (__atomic_exchange_n(&e->reserved, true, __ATOMIC_ACQ_REL))
        return false;
    e->entry = XP_ENTRIES;
    error->code = reserve(t, key, e, opens, deadline, block, h, &error->error);
    error->entry = e->entry;
    if (error->code != XP_EXPORT_GOOD)
        xp_export_cancel(t, e);
    return error->code == XP_EXPORT_GOOD;
}

/* Nobody has seen it. */
void xp_export_cancel(xp_exports *t, xp_export *e)
{
    if (e->entry != XP_ENTRIES)
        xp_entry_return(t, e->entry);
    e->entry = XP_ENTRIES;
    e->generation = e->deadline = 0;
    free(e->offer);
    e->offer = NULL;
    __atomic_store_n(&e->reserved, false, __ATOMIC_RELEASE);
}

void xp_export_publish(xp_exports *t, xp_export *e)
{
    if (e->offer) /* before an importer can ask for it */
        xp_make_offer(e->offer);
    e->offer = NULL;
    lock();
    t->exports[e->entry] = e;
    t->live++;
    e->live = true;
    XP_STORE(&entry_of(t, e)->generation, e->generation); /* whoever reads it sees the whole entry */
    unlock();
}

/* --- what is exported --------------------------------------------------------------------------------------------- */

/* Called with the lock. */
static bool is_kept(const xp_exports *t, const xp_export *e)
{
    return e->entry < XP_ENTRIES && t->exports[e->entry] == e;
}

/* The live export of a handle, or NULL. Called with the lock. */
static xp_export *live_export(const xp_exports *t, const xp_handle *h)
{
    xp_export *e = h->entry < XP_ENTRIES ? t->exports[h->entry] : NULL;
    return e && e->live && e->generation == h->generation && memcmp(e->seal, h->seal, sizeof e->seal) == 0 ? e : NULL;
}

int xp_export_end(xp_exports *t, xp_export *e, uint32_t reason)
{
    lock();
    bool ours = is_kept(t, e) && e->live;
    if (ours) {
        e->live = false;
        t->live--;
    }
    unlock();
    if (!ours)
        return XP_EXPORT_OVER;
    if (is_writable(t))
        xp_withdraw(entry_of(t, e), reason);
    bool lingers = e->foreign && xp_usable(t->d) && (xp_owned(t->d, e->entry) || xp_may_reach(t->d, e->entry));
    return lingers ? XP_EXPORT_LINGERS : XP_EXPORT_GOOD;
}

bool xp_export_release(xp_exports *t, xp_export *e, xp_exposure *x)
{
    lock();
    bool ours = is_kept(t, e) && !e->live;
    if (ours)
        t->exports[e->entry] = NULL;
    unlock();
    if (ours && (x == NULL || !xp_exposure_add(x, t, e->entry)))
        xp_entry_return(t, e->entry);
    return ours;
}

xp_export *xp_export_find(xp_exports *t, const xp_handle *h)
{
    lock();
    xp_export *e = live_export(t, h);
    if (e && t->hold)
        t->hold(e);
    unlock();
    return e;
}

static int by_generation(const void *a, const void *b)
{
    uint64_t one = (*(xp_export *const *)a)->generation, other = (*(xp_export *const *)b)->generation;
    return one < other ? -1 : one > other;
}

uint32_t xp_exports_list(xp_exports *t, xp_export **found, uint32_t room)
{
    uint32_t n = 0;
    lock();
    uint32_t live = t->live;
    for (uint32_t i = 0; i < t->used && live <= room; i++) {
        xp_export *e = t->exports[i];
        if (e == NULL || !e->live)
            continue;
        if (t->hold)
            t->hold(e);
        found[n++] = e;
    }
    unlock();
    if (n > 1)
        qsort(found, n, sizeof *found, by_generation);
    return live;
}

int xp_export_set_deadline(xp_exports *t, xp_export *e, uint64_t deadline)
{
    if (!is_writable(t))
        return XP_EXPORT_UNUSABLE;
    lock();
    bool live = is_kept(t, e) && e->live;
    if (live)
        store_deadline(t, e, deadline);
    unlock();
    return live ? XP_EXPORT_GOOD : XP_EXPORT_OVER;
}

int xp_export_allow_open(xp_exports *t, const xp_handle *h, const uint64_t *until)
{
    lock();
    const xp_export *e = live_export(t, h);
    int code = e == NULL ? XP_EXPORT_OVER : xp_usable(t->d) ? XP_EXPORT_GOOD : XP_EXPORT_UNUSABLE;
    if (code == XP_EXPORT_GOOD && until)
        xp_renew(t->d, e->entry, *until);
    else if (code == XP_EXPORT_GOOD)
        xp_give_open(t->d, e->entry);
    unlock();
    return code;
}
