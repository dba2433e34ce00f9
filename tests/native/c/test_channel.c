/* Locks, atomics and channels: threads of one process, each with an end of its own; and owners that die. */
#include "../../../src/native/engine/channel.h"
#include "support.h"

#define FRAMES 4000u
#define NUMBERS 16u

static char *mapped(int fd, uint64_t nbytes)
{
    char *base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(base != MAP_FAILED);
    return base;
}

static int crew_file(char *path)
{
    strcpy(path, "/tmp/xpushare-crew-XXXXXX");
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    return fd;
}

static void sweep_lock(xp_crew *c, uint32_t m) { xp_lock_sweep(xp_crew_words(c), m); }

static xp_crew *lock_crew(int fd, char *base, bool fresh)
{
    xp_error error;
    xp_crew *c = xp_crew_open(fd, base, XP_CREW_WORDS + 4096, 1, fresh, &error);
    CHECK(c != NULL);
    c->bells[0] = &((xp_lock_words *)xp_crew_words(c))->bell;
    return c;
}

/* The owner is killed while it holds the lock; whoever waits gets it, and is told so once. */
static void test_an_owner_dies(void)
{
    char path[64];
    int fd = crew_file(path), up[2];
    char *base = mapped(memfd(XP_CREW_WORDS + 4096, F_SEAL_SHRINK), XP_CREW_WORDS + 4096), byte;
    CHECK(pipe(up) == 0);
    xp_crew *c = lock_crew(fd, base, true);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) { /* the fork handler has closed the parent's fd */
        uint32_t m;
        xp_crew *mine = lock_crew(open(path, O_RDWR | O_CLOEXEC), base, false);
        EQUAL(xp_crew_claim(mine, "child", sweep_lock, &m), 0);
        EQUAL(xp_lock_try(xp_crew_words(mine), m, 0), XP_LOCK_HELD);
        CHECK(write(up[1], "h", 1) == 1);
        pause();
        _exit(1);
    }
    CHECK(read(up[0], &byte, 1) == 1);
    xp_lock_words *w = xp_crew_words(c);
    uint32_t m;
    EQUAL(xp_crew_claim(c, "parent", sweep_lock, &m), 0);
    EQUAL(m, 1);
    EQUAL(xp_lock_try(w, m, 0), XP_LOCK_BUSY);
    EQUAL(xp_lock_take(c, w, m, xp_now() + 1000000), XP_LOCK_BUSY);
    CHECK(!xp_crew_is_gone(c, 0) && kill(pid, SIGKILL) == 0);
    EQUAL(xp_lock_take(c, w, m, XP_FOREVER), XP_LOCK_DIED);
    CHECK(xp_lock_release(w, m) && !xp_lock_release(w, m));
    EQUAL(xp_lock_try(w, m, 0), XP_LOCK_HELD);
    xp_lock_sweep(w, m); /* it leaves */
    xp_crew_leave(c, m);
    CHECK(waitpid(pid, NULL, 0) == pid);
    EQUAL(xp_crew_claim(c, "again", sweep_lock, &m), 0);
    EQUAL(m, 0);
    EQUAL(xp_lock_try(w, m, 0), XP_LOCK_DIED);
    xp_crew_close(c);
    xp_crew_unref(c);
    CHECK(unlink(path) == 0 && munmap(base, XP_CREW_WORDS + 4096) == 0 && close(up[0]) == 0 && close(up[1]) == 0);
}

static struct {
    xp_crew *c;
    xp_geometry g;
    uint64_t *data;
    uint32_t acknowledged;
} T;

static uint64_t *slot_data(uint32_t slot) { return T.data + slot * NUMBERS; }

static void *write_frames(void *argument)
{
    xp_end *e = argument;
    for (uint64_t k = 1; k <= FRAMES;) {
        uint32_t slot, changes = XP_LOAD(&e->w->changes);
        uint64_t seq;
        if (xp_end_loan(e, &slot) != XP_GOT) {
            xp_end_sleep(e, changes, XP_FOREVER);
            continue;
        }
        for (uint32_t i = 0; i < NUMBERS; i++)
            slot_data(slot)[i] = k;
        xp_end_fill(e, slot, (const char *)&k, sizeof k, "", 0);
        while (xp_end_send(e, slot, sizeof k, 0, &seq) != XP_GOT)
            ;
        k++;
    }
    while (xp_end_finish(e) != XP_GOT)
        ;
    return NULL;
}

static void *read_frames(void *argument)
{
    xp_end *e = argument;
    uint64_t last = 0, count = 0, k;
    for (;;) {
        uint32_t changes = XP_LOAD(&e->w->changes);
        xp_frame f;
        int got = xp_end_receive(e, &f, true);
        if (got == XP_OVER)
            break;
        if (got != XP_GOT) {
            xp_end_sleep(e, changes, XP_FOREVER);
            continue;
        }
        memcpy(&k, xp_end_meta(e, f.slot), sizeof k);
        for (uint32_t i = 0; i < NUMBERS; i++)
            EQUAL(slot_data(f.slot)[i], k);
        CHECK(f.seq > last || e->mode == XP_MODE_ONE); /* where frames come back */
        last = f.seq;
        count++;
        bool done = e->mode != XP_MODE_ONE || k % 7 || f.deliveries > 1; /* some are handed out twice */
        if (done && e->mode == XP_MODE_ONE)
            __atomic_fetch_add(&T.acknowledged, 1, __ATOMIC_SEQ_CST);
        while (xp_end_release(e, f.slot, done, 0) != XP_GOT)
            ;
    }
    if (e->mode == XP_MODE_ALL)
        EQUAL(count, 2 * FRAMES);
    return NULL;
}

static void test_frames_between_threads(void)
{
    static const int modes[] = {0, 0, XP_MODE_ALL, XP_MODE_NEWEST, XP_MODE_ONE, XP_MODE_ONE};
    enum { ENDS = sizeof modes / sizeof *modes };
    char path[64];
    int fd = crew_file(path);
    xp_geometry found;
    xp_error error;
    xp_end ends[ENDS];
    pthread_t threads[ENDS];
    T.g = (xp_geometry){.nbytes = NUMBERS * 8, .slots = 9, .spare = 4, .writers = 2, .redeliver = 3, .meta_nbytes = 8};
    uint64_t nbytes = xp_channel_nbytes(&T.g);
    CHECK(nbytes != 0);
    char *base = mapped(memfd(nbytes, F_SEAL_SHRINK), nbytes);
    T.data = calloc((T.g.slots + T.g.spare) * NUMBERS, 8);
    T.c = xp_crew_open(fd, base, nbytes, 3, true, &error);
    CHECK(T.c != NULL && T.data != NULL);
    xp_channel_begin(T.c, &T.g, "text", 4);
    CHECK(xp_channel_geometry(T.c, &found) && memcmp(&found, &T.g, sizeof found) == 0);
    for (int i = 0; i < ENDS; i++)
        EQUAL(xp_end_join(&ends[i], T.c, &T.g, "", modes[i], false, modes[i] == 0), 0);
    for (int i = 0; i < ENDS; i++)
        CHECK(pthread_create(&threads[i], NULL, modes[i] ? read_frames : write_frames, &ends[i]) == 0);
    for (int i = 0; i < ENDS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    EQUAL(T.acknowledged, 2 * FRAMES);
    for (int i = 0; i < ENDS; i++) {
        xp_end_leave(&ends[i]);
        xp_crew_unref(T.c);
    }
    xp_crew_close(T.c);
    xp_crew_unref(T.c);
    free(T.data);
    CHECK(munmap(base, nbytes) == 0 && unlink(path) == 0);
}

/* Whatever a peer writes as the geometry: it is refused, or everything lies in the words. */
static void test_geometries(void)
{
    xp_geometry good = {.nbytes = 8, .slots = 3, .spare = 4, .writers = 1};
    CHECK(xp_channel_nbytes(&good) > XP_CREW_WORDS);
    xp_geometry bad[] = {good, good, good, good, good, good, good};
    bad[0].slots = 2;
    bad[1].slots = XP_CHANNEL_SLOTS + 1;
    bad[2].spare = XP_CHANNEL_SPARE + 1;
    bad[3].writers = UINT32_MAX;
    bad[4].nbytes = UINT64_MAX;
    bad[5].meta_nbytes = UINT32_MAX;
    bad[6].history = 2;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EQUAL(xp_channel_nbytes(&bad[i]), 0);
}

static void *add(void *words)
{
    for (int i = 0; i < 10000; i++)
        xp_atomic_add(words, 1);
    return NULL;
}

static void test_atomics(void)
{
    xp_atomic_words w = {0};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, add, &w) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    EQUAL(w.value, 20000);
    CHECK(!xp_atomic_swap(&w, 1, 2) && xp_atomic_swap(&w, 20000, 2));
}

int main(void)
{
    xp_engine_init();
    test_an_owner_dies();
    test_geometries();
    test_atomics();
    test_frames_between_threads();
    xp_loop_stop();
    return 0;
}
