/* Memory for other libraries' allocators (torch's pluggable allocator, CuPy's CFunctionAllocator) that has POSIX file
 * descriptors, and that can be taken away and given back under addresses that stay.
 *
 * A pool maps large *chunks*, each one allocation of CUDA's virtual memory management, and cuts them into *blocks*, which
 * are what an allocator asks for. So a model of hundreds of segments takes a few file descriptors. The driver's functions
 * come by their addresses, from the adapter. Nothing here knows Python: allocators call from any thread, some of them with
 * a lock held that a thread with the GIL may wait for.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define POOLS 16
#define UNIT 512u /* block sizes are multiples of this; CUDA aligns in the same way */
#define PAGE 4096u
#define LEAST (64ull << 20) /* size of a chunk: half of the pool's size, from LEAST to MOST, or one larger block */
#define MOST (512ull << 20)

/* CUDA's structures and numbers, as cuda.h has them. */
typedef struct {
    int type, id;
} location;
typedef struct {
    int type, handle_types;
    location where;
    void *unused;
    unsigned char flags[8];
} properties;
typedef struct {
    location where;
    int flags;
} access_to;
enum { PINNED = 1, POSIX_FD = 1, ON_DEVICE = 1, READ_WRITE = 3, RELAXED = 2, OUT_OF_MEMORY = 2 };

typedef struct {
    int (*create)(uint64_t *handle, size_t nbytes, const properties *, unsigned long long flags);
    int (*release)(uint64_t handle);
    int (*reserve)(uint64_t *address, size_t nbytes, size_t alignment, uint64_t at, unsigned long long flags);
    int (*unreserve)(uint64_t address, size_t nbytes);
    int (*map)(uint64_t address, size_t nbytes, size_t offset, uint64_t handle, unsigned long long flags);
    int (*unmap)(uint64_t address, size_t nbytes);
    int (*set_access)(uint64_t address, size_t nbytes, const access_to *, size_t count);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*exchange)(int *mode);
    int (*pin)(void *page, size_t nbytes, unsigned flags);
    int (*unpin)(void *page);
} calls;

typedef struct block {
    struct block *next; /* by address */
    uint64_t at;
    size_t nbytes;
    bool used;
} block;

typedef struct chunk {
    struct chunk *next;
    block *blocks;
    uint64_t at, handle; /* handle 0: asleep */
    size_t nbytes;
    uint64_t serial; /* the id of this memory: no other memory at the address has the same one */
} chunk;

typedef struct {
    uint64_t at, nbytes, handle, serial, used; /* used: the end of the last block in use, in bytes from `at` on */
} xp_piece;

typedef struct {
    pthread_mutex_t lock;
    pid_t owner; /* atomic; 0 if the place is free, -1 while a pool is being made there */
    bool ended;  /* free once its last block is */
    bool asleep;
    int device;
    size_t granule;
    void *context;
    calls call;
    chunk *chunks;
    void *page; /* registered with the driver: unregistering it waits for the device's work, and ends no capture */
} pool;

static pool pools[POOLS] = {[0 ... POOLS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};
static uint64_t serials; /* atomic */

static size_t up(size_t nbytes, size_t unit) { return (nbytes + unit - 1) / unit * unit; }

/* --- the driver; with the pool's lock --- */

typedef struct {
    int mode;
} scope;

static int enter(pool *p, scope *s)
{
    s->mode = RELAXED; /* our calls never end anybody's capture */
    int code = p->call.exchange(&s->mode);
    if (code)
        return code;
    if ((code = p->call.push(p->context)))
        p->call.exchange(&s->mode);
    return code;
}

static void leave(pool *p, scope *s)
{
    void *unused;
    p->call.pop(&unused);
    p->call.exchange(&s->mode);
}

static int drain(pool *p)
{
    int code = p->call.unpin(p->page);
    int again = p->call.pin(p->page, PAGE, 0);
    return code ? code : again;
}

static int back(pool *p, chunk *c)
{
    properties what = {.type = PINNED, .handle_types = POSIX_FD, .where = {ON_DEVICE, p->device}};
    access_to whole = {{ON_DEVICE, p->device}, READ_WRITE};
    uint64_t handle = 0;
    int code = p->call.create(&handle, c->nbytes, &what, 0);
    if (code)
        return code;
    if (!(code = p->call.map(c->at, c->nbytes, 0, handle, 0))) {
        if (!(code = p->call.set_access(c->at, c->nbytes, &whole, 1))) {
            c->handle = handle;
            c->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
            return 0;
        }
        p->call.unmap(c->at, c->nbytes);
    }
    p->call.release(handle);
    return code;
}

static int unback(pool *p, chunk *c)
{
    if (!c->handle)
        return 0;
    int code = p->call.unmap(c->at, c->nbytes);
    if (code)
        return code;
    p->call.release(c->handle);
    c->handle = 0;
    return 0;
}

/* --- chunks and blocks; with the pool's lock --- */

static int new_chunk(pool *p, size_t nbytes, chunk **made)
{
    chunk *c = calloc(1, sizeof *c);
    block *b = calloc(1, sizeof *b);
    int code = c && b ? 0 : OUT_OF_MEMORY;
    if (!code && !(code = p->call.reserve(&c->at, nbytes, 0, 0, 0))) {
        c->nbytes = nbytes;
        if (!(code = back(p, c))) {
            *b = (block){.at = c->at, .nbytes = nbytes};
            c->blocks = b;
            c->next = p->chunks;
            *made = p->chunks = c;
            return 0;
        }
        p->call.unreserve(c->at, nbytes);
    }
    free(c);
    free(b);
    return code;
}

static block *fit(chunk *c, size_t nbytes)
{
    for (block *b = c->blocks; b; b = b->next)
        if (!b->used && b->nbytes >= nbytes)
            return b;
    return NULL;
}

static bool cut(block *b, size_t nbytes)
{
    if (b->nbytes > nbytes) {
        block *rest = calloc(1, sizeof *rest);
        if (!rest)
            return false;
        *rest = (block){.next = b->next, .at = b->at + nbytes, .nbytes = b->nbytes - nbytes};
        b->next = rest;
        b->nbytes = nbytes;
    }
    b->used = true;
    return true;
}

static void join(chunk *c)
{
    for (block *b = c->blocks; b; b = b->next)
        while (!b->used && b->next && !b->next->used) {
            block *gone = b->next;
            b->nbytes += gone->nbytes;
            b->next = gone->next;
            free(gone);
        }
}

static void end_chunk(pool *p, chunk **place)
{
    chunk *c = *place;
    scope s;
    if (enter(p, &s))
        return; /* the context is gone, and the memory with it */
    int code = c->handle ? drain(p) : 0;
    if (!code && !unback(p, c) && !p->call.unreserve(c->at, c->nbytes)) {
        *place = c->next;
        free(c->blocks);
        free(c);
    }
    leave(p, &s);
}

static void *take(pool *p, size_t nbytes)
{
    size_t total = 0;
    block *b = NULL;
    nbytes = up(nbytes ? nbytes : 1, UNIT);
    for (chunk *c = p->chunks; c && !b; c = c->next) {
        b = fit(c, nbytes);
        total += c->nbytes;
    }
    if (!b) {
        chunk *c = NULL;
        scope s;
        size_t wanted = total / 2 < LEAST ? LEAST : total / 2 > MOST ? MOST : total / 2;
        wanted = up(wanted < nbytes ? nbytes : wanted, p->granule);
        if (enter(p, &s))
            return NULL;
        int code = new_chunk(p, wanted, &c);
        if (code == OUT_OF_MEMORY && up(nbytes, p->granule) < wanted)
            new_chunk(p, up(nbytes, p->granule), &c);
        leave(p, &s);
        if (!c)
            return NULL;
        b = c->blocks;
    }
    return cut(b, nbytes) ? (void *)(uintptr_t)b->at : NULL;
}

static void forget(pool *p)
{
    scope s;
    if (!enter(p, &s)) {
        p->call.unpin(p->page);
        leave(p, &s);
    }
    free(p->page);
    p->page = NULL;
    p->ended = p->asleep = false;
    __atomic_store_n(&p->owner, 0, __ATOMIC_RELEASE);
}

static void give(pool *p, uint64_t at)
{
    for (chunk **place = &p->chunks; *place; place = &(*place)->next) {
        chunk *c = *place;
        if (at < c->at || at >= c->at + c->nbytes)
            continue;
        for (block *b = c->blocks; b; b = b->next)
            if (b->at == at)
                b->used = false;
        join(c);
        if (!c->blocks->used && !c->blocks->next)
            end_chunk(p, place);
        break;
    }
    if (p->ended && !p->chunks)
        forget(p);
}

/* --- what allocators call --- */

static bool mine(const pool *p) /* a forked child has its parent's addresses, but nothing is mapped there */
{
    return __atomic_load_n(&p->owner, __ATOMIC_ACQUIRE) == getpid();
}

static void *pool_take(pool *p, size_t nbytes, int device)
{
    void *found = NULL;
    if (!mine(p) || device != p->device)
        return NULL;
    pthread_mutex_lock(&p->lock);
    if (!p->asleep)
        found = take(p, nbytes);
    pthread_mutex_unlock(&p->lock);
    return found;
}

static void pool_give(pool *p, void *at)
{
    if (!at || !mine(p))
        return;
    pthread_mutex_lock(&p->lock);
    give(p, (uintptr_t)at);
    pthread_mutex_unlock(&p->lock);
}

/* torch's functions do not pass the pool, so each pool has functions of its own. */
#define FUNCTIONS(N)                                                                                                       \
    EXPORT void *xp_pool_malloc_##N(ssize_t nbytes, int device, void *stream)                                              \
    {                                                                                                                      \
        (void)stream;                                                                                                      \
        return pool_take(&pools[N], (size_t)nbytes, device);                                                               \
    }                                                                                                                      \
    EXPORT void xp_pool_free_##N(void *at, ssize_t nbytes, int device, void *stream)                                       \
    {                                                                                                                      \
        (void)nbytes;                                                                                                      \
        (void)device;                                                                                                      \
        (void)stream;                                                                                                      \
        pool_give(&pools[N], at);                                                                                          \
    }
FUNCTIONS(0)
FUNCTIONS(1)
FUNCTIONS(2)
FUNCTIONS(3)
FUNCTIONS(4)
FUNCTIONS(5)
FUNCTIONS(6)
FUNCTIONS(7)
FUNCTIONS(8)
FUNCTIONS(9)
FUNCTIONS(10)
FUNCTIONS(11)
FUNCTIONS(12)
FUNCTIONS(13)
FUNCTIONS(14)
FUNCTIONS(15)

/* CuPy's functions pass a parameter of ours: the pool's number. */
EXPORT void *xp_pool_malloc(void *number, size_t nbytes, int device)
{
    return pool_take(&pools[(uintptr_t)number], nbytes, device);
}

EXPORT void xp_pool_free(void *number, void *at, int device)
{
    (void)device;
    pool_give(&pools[(uintptr_t)number], at);
}

/* --- what the adapter calls; codes are the driver's --- */

/* Returns the new pool's number, -1 if there are as many pools as possible, or else minus the driver's code, minus
 * one. */
EXPORT int xp_pool_make(const calls *call, void *context, int device, size_t granule)
{
    for (int number = 0; number < POOLS; number++) {
        pool *p = &pools[number];
        pid_t nobody = 0;
        scope s;
        if (!__atomic_compare_exchange_n(&p->owner, &nobody, -1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue; /* a parent's pool keeps its place in a forked child */
        p->call = *call;
        p->context = context;
        p->device = device;
        p->granule = granule;
        int code = posix_memalign(&p->page, PAGE, PAGE) ? OUT_OF_MEMORY : 0;
        if (!code && !(code = enter(p, &s))) {
            code = p->call.pin(p->page, PAGE, 0);
            leave(p, &s);
        }
        if (code) {
            free(p->page);
            p->page = NULL;
        }
        __atomic_store_n(&p->owner, code ? 0 : getpid(), __ATOMIC_RELEASE);
        return code ? -1 - code : number;
    }
    return -1;
}

/* Its place becomes free with its last block. */
EXPORT void xp_pool_end(int number)
{
    pool *p = &pools[number];
    if (!mine(p))
        return;
    pthread_mutex_lock(&p->lock);
    p->ended = true;
    if (!p->chunks)
        forget(p);
    pthread_mutex_unlock(&p->lock);
}

static void describe(const chunk *c, xp_piece *found)
{
    *found = (xp_piece){c->at, c->nbytes, c->handle, c->serial, 0};
    for (block *b = c->blocks; b; b = b->next)
        if (b->used)
            found->used = b->at + b->nbytes - c->at;
}

/* Return the number of the pool of the memory at an address, even if it sleeps, or -1. */
EXPORT int xp_pool_find(uint64_t at, xp_piece *found)
{
    for (int number = 0; number < POOLS; number++) {
        pool *p = &pools[number];
        bool here = false;
        if (!mine(p))
            continue;
        pthread_mutex_lock(&p->lock);
        for (chunk *c = p->chunks; c && !here; c = c->next)
            if (at >= c->at && at < c->at + c->nbytes) {
                describe(c, found);
                here = true;
            }
        pthread_mutex_unlock(&p->lock);
        if (here)
            return number;
    }
    return -1;
}

/* Return how many chunks it has, and describe the first `most`. */
EXPORT int xp_pool_pieces(int number, xp_piece *found, int most)
{
    pool *p = &pools[number];
    int count = 0;
    pthread_mutex_lock(&p->lock);
    for (chunk *c = p->chunks; c; c = c->next, count++)
        if (count < most)
            describe(c, &found[count]);
    pthread_mutex_unlock(&p->lock);
    return count;
}

/* Waits for the device's work, and gives the memory back; the addresses stay. After a failure it is awake, or asleep in
 * part, which `xp_pool_wake` mends.
 */
EXPORT int xp_pool_sleep(int number)
{
    pool *p = &pools[number];
    scope s;
    pthread_mutex_lock(&p->lock);
    int code = enter(p, &s);
    if (!code) {
        if (!(code = drain(p)))
            p->asleep = true;
        for (chunk *c = p->chunks; c && !code; c = c->next)
            code = unback(p, c);
        leave(p, &s);
    }
    pthread_mutex_unlock(&p->lock);
    return code;
}

/* Map new memory at the old addresses, with unspecified content. If this fails, the pool stays asleep, and the call
 * can be tried again. */
EXPORT int xp_pool_wake(int number)
{
    pool *p = &pools[number];
    scope s;
    pthread_mutex_lock(&p->lock);
    int code = enter(p, &s);
    if (!code) {
        for (chunk *c = p->chunks; c && !code; c = c->next)
            if (!c->handle)
                code = back(p, c);
        if (!code)
            p->asleep = false;
        else
            for (chunk *c = p->chunks; c; c = c->next)
                unback(p, c); /* nobody has used it yet */
        leave(p, &s);
    }
    pthread_mutex_unlock(&p->lock);
    return code;
}
