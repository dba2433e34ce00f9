/* Locks, atomics and channels: threads of one process, each with an end of its own; and owners that die. */
#include "../../../src/engine/channel.h"
#include "support.h"

#include <sys/ptrace.h>

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

/* --- a death after each store ------------------------------------------------------------------------------------- */

#define MOST_STEPS 1000000u /* some processors never complete an exclusive store that is stepped through */
#define NO_STEPS 77

enum { KILLED, ENDED };

static struct {
    xp_crew *c;
    xp_end writer, worker; /* of the process that survives */
    char path[64], *base, *before;
    uint64_t nbytes;
    bool done[64]; /* by seq */
} K;

static const xp_geometry four_slots = {.nbytes = 8, .slots = 4, .writers = 2};

static xp_crew *channel_crew(int fd, bool fresh)
{
    xp_error error;
    xp_geometry found;
    xp_crew *c = xp_crew_open(fd, K.base, K.nbytes, 3, fresh, &error);
    CHECK(c != NULL);
    if (fresh)
        xp_channel_begin(c, &four_slots, "", 0);
    CHECK(xp_channel_geometry(c, &found));
    return c;
}

static int send_one(xp_end *e)
{
    uint32_t slot;
    uint64_t seq;
    int got = xp_end_loan(e, &slot);
    if (got == XP_GOT)
        EQUAL(xp_end_send(e, slot, 8, 0, &seq), XP_GOT);
    return got;
}

static int take_one(xp_end *e, bool done, uint64_t *seq)
{
    xp_frame f;
    int got = xp_end_receive(e, &f, true);
    if (got == XP_GOT) {
        *seq = f.seq;
        EQUAL(xp_end_release(e, f.slot, done, 0), XP_GOT);
    }
    return got;
}

static void work(xp_crew *c)
{
    xp_end e;
    xp_frame f;
    uint64_t seq;
    EQUAL(xp_end_join(&e, c, &four_slots, "", XP_MODE_ONE, true, false), 0);
    EQUAL(take_one(&e, true, &seq), XP_GOT);
    EQUAL(take_one(&e, false, &seq), XP_GOT);
    EQUAL(xp_end_receive(&e, &f, true), XP_GOT);
    xp_end_leave(&e);
}

static void fill(xp_crew *c)
{
    xp_end e;
    uint32_t slot;
    EQUAL(xp_end_join(&e, c, &four_slots, "", XP_MODE_NONE, false, true), 0);
    EQUAL(send_one(&e), XP_GOT);
    EQUAL(xp_end_loan(&e, &slot), XP_GOT);
    EQUAL(xp_end_drop(&e, slot), XP_GOT);
    EQUAL(xp_end_loan(&e, &slot), XP_GOT);
    EQUAL(xp_end_finish(&e), XP_GOT);
    xp_end_leave(&e);
}

/* Run `body` in another process, which is killed right after its `store`th change of the shared words. */
static int kill_after(uint32_t store, void (*body)(xp_crew *c))
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        xp_crew *c = channel_crew(open(K.path, O_RDWR | O_CLOEXEC), false);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(NO_STEPS);
        raise(SIGSTOP);
        body(c);
        _exit(0);
    }
    EQUAL(waitpid(pid, &status, 0), pid);
    memcpy(K.before, K.base, K.nbytes);
    for (uint32_t steps = 0, stores = 0; WIFSTOPPED(status);) {
        CHECK(WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP);
        if (memcmp(K.before, K.base, K.nbytes) != 0) {
            memcpy(K.before, K.base, K.nbytes);
            stores++;
        }
        if (stores == store || steps++ == MOST_STEPS)
            CHECK(kill(pid, SIGKILL) == 0);
        else
            CHECK(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0);
        EQUAL(waitpid(pid, &status, 0), pid);
        if (WIFSIGNALED(status) && stores != store)
            return NO_STEPS;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_STEPS)
        return NO_STEPS;
    CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status) ? KILLED : ENDED;
}

/* Each frame is finished once. */
static void take_all(void)
{
    uint64_t seq;
    for (;;) {
        int got = take_one(&K.worker, true, &seq);
        if (got == XP_GOT) {
            CHECK(seq < sizeof K.done && !K.done[seq]);
            K.done[seq] = true;
        } else if (xp_end_watch(&K.worker) != XP_CREW_GONE) {
            EQUAL(got, XP_WAIT);
            break;
        }
    }
    for (seq = 1; seq < K.worker.w->next_seq; seq++)
        CHECK(K.done[seq] && "each frame was handed out until a reader finished it");
}

/* The frames of four slots, of which this process takes `taken` before the other one begins. */
static int survive(uint32_t store, uint32_t taken, void (*body)(xp_crew *c))
{
    int fd = crew_file(K.path);
    K.base = mapped(memfd(K.nbytes, F_SEAL_SHRINK), K.nbytes);
    K.c = channel_crew(fd, true);
    memset(K.done, 0, sizeof K.done);
    EQUAL(xp_end_join(&K.worker, K.c, &four_slots, "", XP_MODE_ONE, true, false), 0);
    EQUAL(xp_end_join(&K.writer, K.c, &four_slots, "", XP_MODE_NONE, false, true), 0);
    for (uint32_t i = 0; i < four_slots.slots; i++)
        EQUAL(send_one(&K.writer), XP_GOT);
    for (uint64_t i = 0, seq; i < taken; i++) {
        EQUAL(take_one(&K.worker, true, &seq), XP_GOT);
        K.done[seq] = true;
    }
    int how = kill_after(store, body);
    xp_channel_words *w = K.worker.w;
    for (uint32_t i = 0; i < four_slots.slots; i++)
        if ((w->slots[i].word & 7) == XP_FULL && w->slots[i].job % 256 == XP_FINISHED_JOB)
            K.done[w->slots[i].word >> 3] = true;
    send_one(&K.writer); /* the first that has the lock after that death, if there is a slot for it */
    take_all();
    for (uint32_t i = 0; i < four_slots.slots; i++)
        EQUAL(send_one(&K.writer), XP_GOT); /* no slot is lost */
    take_all();
    xp_end_leave(&K.writer);
    xp_end_leave(&K.worker);
    xp_crew_unref(K.c);
    xp_crew_unref(K.c);
    xp_crew_close(K.c);
    xp_crew_unref(K.c);
    CHECK(munmap(K.base, K.nbytes) == 0 && unlink(K.path) == 0);
    return how;
}

static void test_deaths_after_each_store(void)
{
#ifdef __SANITIZE_THREAD__ /* it would take ten times as long, and each process here is one thread */
    return;
#endif
    K.nbytes = xp_channel_nbytes(&four_slots);
    K.before = malloc(K.nbytes);
    CHECK(K.before != NULL);
    void (*const bodies[])(xp_crew *) = {work, fill};
    for (int i = 0; i < 2; i++) {
        uint32_t store = 1;
        int how;
        while ((how = survive(store, i == 0 ? 0 : 2, bodies[i])) == KILLED)
            store++;
        if (how == NO_STEPS)
            printf("not run: processes may not be stepped through here\n");
        else
            CHECK(store > 30); /* it was in all of those places */
    }
    free(K.before);
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
    test_deaths_after_each_store();
    xp_loop_stop();
    return 0;
}
