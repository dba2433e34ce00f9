/* The allocator of pools over a pretended driver: threads allocate and free while another one has the pool sleep and wake. */
#define _GNU_SOURCE
#include "../../../src/native/cuda/device_pool.c"

#include <stdio.h>

#define CHECK(holds)                                                                                                       \
    do {                                                                                                                   \
        if (!(holds)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds);                                                    \
            exit(1);                                                                                                       \
        }                                                                                                                  \
    } while (0)

enum { THREADS = 4, ROUNDS = 4000, LIVE = 12, PLACES = 64 };
static const uint64_t BASE = 1ull << 40, PLACE = 1ull << 30, GRANULE = 2ull << 20;
static const uint64_t MEMORY = 4ull << 30; /* of the device */

static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;
static size_t reserved[PLACES];
static uint64_t mapped[PLACES]; /* handles */
static size_t accessible[PLACES];
static size_t sizes[1 << 20];
static int references[1 << 20];
static uint64_t handles, in_use;
static int pushed, pinned;
static int owners[PLACES * 512]; /* of granules, atomic: the thread that has each */

static size_t place_of(uint64_t at) { return (size_t)((at - BASE) / PLACE); }

static void drop(uint64_t handle)
{
    if (--references[handle] == 0)
        in_use -= sizes[handle];
}

static int fake_create(uint64_t *handle, size_t nbytes, const properties *what, unsigned long long flags)
{
    CHECK(nbytes % GRANULE == 0 && what->handle_types == POSIX_FD && what->where.id == 3 && flags == 0);
    pthread_mutex_lock(&driver);
    int code = in_use + nbytes > MEMORY ? OUT_OF_MEMORY : 0;
    if (!code) {
        *handle = ++handles;
        CHECK(handles < sizeof sizes / sizeof *sizes);
        sizes[handles] = nbytes;
        references[handles] = 1;
        in_use += nbytes;
    }
    pthread_mutex_unlock(&driver);
    return code;
}

static int fake_release(uint64_t handle)
{
    pthread_mutex_lock(&driver);
    drop(handle);
    pthread_mutex_unlock(&driver);
    return 0;
}

static int fake_reserve(uint64_t *at, size_t nbytes, size_t alignment, uint64_t wanted, unsigned long long flags)
{
    int code = OUT_OF_MEMORY;
    CHECK(nbytes <= PLACE && alignment == 0 && wanted == 0 && flags == 0);
    pthread_mutex_lock(&driver);
    for (size_t i = 0; i < PLACES && code; i++)
        if (!reserved[i]) {
            reserved[i] = nbytes;
            *at = BASE + i * PLACE;
            code = 0;
        }
    pthread_mutex_unlock(&driver);
    return code;
}

static int fake_unreserve(uint64_t at, size_t nbytes)
{
    pthread_mutex_lock(&driver);
    CHECK(reserved[place_of(at)] == nbytes && !mapped[place_of(at)]);
    reserved[place_of(at)] = 0;
    pthread_mutex_unlock(&driver);
    return 0;
}

static int fake_map(uint64_t at, size_t nbytes, size_t offset, uint64_t handle, unsigned long long flags)
{
    pthread_mutex_lock(&driver);
    CHECK(reserved[place_of(at)] == nbytes && !mapped[place_of(at)] && sizes[handle] == nbytes && !offset && !flags);
    mapped[place_of(at)] = handle;
    references[handle]++;
    pthread_mutex_unlock(&driver);
    return 0;
}

static int fake_unmap(uint64_t at, size_t nbytes)
{
    pthread_mutex_lock(&driver);
    CHECK(mapped[place_of(at)] && reserved[place_of(at)] == nbytes);
    drop(mapped[place_of(at)]);
    mapped[place_of(at)] = 0;
    accessible[place_of(at)] = 0;
    pthread_mutex_unlock(&driver);
    return 0;
}

static int fake_set_access(uint64_t at, size_t nbytes, const access_to *whom, size_t count)
{
    CHECK(count == 1 && whom->where.id == 3 && whom->flags == READ_WRITE);
    pthread_mutex_lock(&driver);
    accessible[place_of(at)] = nbytes;
    pthread_mutex_unlock(&driver);
    return 0;
}

static int fake_push(void *context)
{
    CHECK(context == &driver);
    __atomic_add_fetch(&pushed, 1, __ATOMIC_RELAXED);
    return 0;
}

static int fake_pop(void **context)
{
    *context = &driver;
    __atomic_sub_fetch(&pushed, 1, __ATOMIC_RELAXED);
    return 0;
}

static int fake_exchange(int *mode)
{
    static __thread int current;
    int before = current;
    current = *mode;
    *mode = before;
    return 0;
}

static int fake_pin(void *page, size_t nbytes, unsigned flags)
{
    CHECK(page && nbytes == PAGE && !flags);
    __atomic_add_fetch(&pinned, 1, __ATOMIC_RELAXED);
    return 0;
}

static int fake_unpin(void *page)
{
    CHECK(page);
    __atomic_sub_fetch(&pinned, 1, __ATOMIC_RELAXED);
    return 0;
}

static const calls fake = {
    fake_create, fake_release, fake_reserve, fake_unreserve, fake_map,      fake_unmap,
    fake_set_access, fake_push, fake_pop,    fake_exchange,  fake_pin, fake_unpin,
};

static void own(uint64_t at, size_t nbytes, int from, int to)
{
    for (uint64_t granule = (at - BASE) / GRANULE; granule < (at - BASE + nbytes) / GRANULE; granule++) {
        int expected = from;
        CHECK(__atomic_compare_exchange_n(&owners[granule], &expected, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    }
}

static void *allocate(void *argument)
{
    int me = (int)(intptr_t)argument;
    unsigned seed = (unsigned)me;
    struct {
        uint64_t at;
        size_t nbytes;
    } live[LIVE] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        int which = rand_r(&seed) % LIVE;
        if (live[which].at) {
            own(live[which].at, live[which].nbytes, me, 0);
            xp_pool_free_0((void *)(uintptr_t)live[which].at, 0, 3, NULL);
            live[which].at = 0;
            continue;
        }
        size_t nbytes = GRANULE * (size_t)(1 + rand_r(&seed) % 20);
        uint64_t at = (uintptr_t)xp_pool_malloc_0((ssize_t)nbytes, 3, NULL);
        if (!at)
            continue; /* it sleeps, or there is no more */
        CHECK(at % GRANULE == 0);
        own(at, nbytes, 0, me);
        live[which].at = at;
        live[which].nbytes = nbytes;
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i].at) {
            own(live[i].at, live[i].nbytes, me, 0);
            xp_pool_free_0((void *)(uintptr_t)live[i].at, 0, 3, NULL);
        }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    xp_piece pieces[PLACES];
    CHECK(xp_pool_make(&fake, &driver, 3, GRANULE) == 0);
    CHECK(!xp_pool_malloc_0((ssize_t)GRANULE, 2, NULL)); /* of another device */
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, allocate, (void *)(intptr_t)(i + 1)) == 0);
    for (int i = 0; i < 200; i++) {
        CHECK(xp_pool_sleep(0) == 0);
        CHECK(in_use == 0); /* nobody else takes any */
        CHECK(xp_pool_wake(0) == 0);
        int count = xp_pool_pieces(0, pieces, PLACES);
        for (int k = 0; k < count && k < PLACES; k++) {
            xp_piece found;
            CHECK(pieces[k].used <= pieces[k].nbytes);
            int number = xp_pool_find(pieces[k].at, &found); /* it may be gone by now */
            CHECK(number == -1 || found.at == pieces[k].at);
        }
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(xp_pool_pieces(0, pieces, PLACES) == 0);
    CHECK(in_use == 0 && pushed == 0 && pinned == 1);
    for (size_t i = 0; i < PLACES; i++)
        CHECK(!reserved[i] && !mapped[i] && !accessible[i]);
    xp_pool_end(0);
    CHECK(pinned == 0 && pools[0].owner == 0);
    puts("device_pool: passed");
    return 0;
}
