/* Locks, atomics and channels: threads of one process, each with an end of its own; and owners that die. */
#include "../../../src/engine/channel.h"
#include "support.h"

#include <sys/ptrace.h>

#define FRAMES 4000u
#define NUMBERS 16u
#define PLACES 5u

static char *mapped(int fd, uint64_t nbytes)
{
    char *base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(base != MAP_FAILED);
    return base;
}

static xp_group *opened(int fd, char *base, uint64_t nbytes, uint32_t kind, int how, uint32_t members)
{
    xp_error error;
    xp_group *g = xp_group_open(fd, base, nbytes, kind, how, members, kind == XP_HOME ? PLACES : 1, &error);
    CHECK(g != NULL);
    return g;
}

static void closed(xp_group *g)
{
    xp_group_leave(g);
    xp_group_unref(g);
}

/* --- a home -------------------------------------------------------------------------------------------------------- */

static struct {
    char *base;
    uint64_t nbytes;
    int fd;
} H;

static xp_group *home(int how) { return opened(H.fd, H.base, H.nbytes, XP_HOME, how, 3); }

static void begin_home(void)
{
    H.nbytes = xp_group_nbytes(3, PLACES, PLACES * XP_PLACE_WORDS);
    H.base = mapped(H.fd = memfd(H.nbytes, F_SEAL_SHRINK), H.nbytes);
}

static void end_home(void) { CHECK(munmap(H.base, H.nbytes) == 0 && close(H.fd) == 0); }

/* Run `body` in another process, until it is killed. */
static pid_t other_process(void (*body)(xp_group *g, uint64_t generation), uint64_t generation)
{
    int up[2];
    char byte;
    CHECK(pipe(up) == 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        body(home(XP_GROUP_JOIN), generation);
        CHECK(write(up[1], "h", 1) == 1);
        pause();
        _exit(1);
    }
    CHECK(read(up[0], &byte, 1) == 1 && close(up[0]) == 0 && close(up[1]) == 0);
    return pid;
}

static void end_process(pid_t pid) { CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid); }

static void open_place(xp_group *g, uint64_t generation)
{
    xp_place_attach(g, 0);
    EQUAL(xp_place_state(g, 0, generation, XP_PLACE_LOCK), XP_PLACE_SHARED);
}

static void acquire(xp_group *g, uint64_t generation)
{
    open_place(g, generation);
    EQUAL(xp_lock_try(xp_place_words(g, 0), g->member, 0), XP_LOCK_HELD);
}

/* The owner is killed while it holds the lock; whoever waits gets it, and is told so once. */
static void test_an_owner_dies(void)
{
    uint64_t generation;
    begin_home();
    xp_group *g = home(XP_GROUP_MAKE);
    EQUAL(g->member, 0);
    EQUAL(xp_place_begin(g, XP_PLACE_LOCK, &generation), 0);
    pid_t pid = other_process(acquire, generation);
    xp_lock_words *w = xp_place_words(g, 0);
    EQUAL(xp_lock_try(w, g->member, 0), XP_LOCK_BUSY);
    EQUAL(xp_lock_take(g, w, g->member, xp_now() + 1000000), XP_LOCK_BUSY);
    CHECK(!xp_group_is_gone(g, 1) && kill(pid, SIGKILL) == 0);
    EQUAL(xp_lock_take(g, w, g->member, XP_FOREVER), XP_LOCK_DIED);
    uint64_t turn = w->owner;
    CHECK(xp_lock_end_turn(w, turn, false) && !xp_lock_end_turn(w, turn, false) && !xp_lock_release(w, g->member));
    EQUAL(xp_lock_try(w, g->member, 0), XP_LOCK_HELD);
    CHECK(!xp_lock_end_turn(w, turn, false) && xp_lock_end_turn(w, w->owner, true)); /* its object is closed */
    EQUAL(xp_lock_try(w, g->member, 0), XP_LOCK_DIED);
    CHECK(waitpid(pid, NULL, 0) == pid);
    closed(g);
    end_home();
}

/* The next member at a dead one's index has nothing of what it left. */
static void acquire_again(xp_group *g, uint64_t generation)
{
    EQUAL(g->member, 1);
    xp_place *place = xp_place_at(g, 0);
    CHECK(place->attached[0] == 1 && g->member == 1);
    open_place(g, generation);
    EQUAL(xp_lock_try(xp_place_words(g, 0), g->member, 0), XP_LOCK_DIED);
}

static void test_an_index_is_used_again(void)
{
    uint64_t generation;
    begin_home();
    xp_group *g = home(XP_GROUP_MAKE);
    EQUAL(xp_place_begin(g, XP_PLACE_LOCK, &generation), 0);
    end_process(other_process(acquire, generation));
    end_process(other_process(acquire_again, generation));
    closed(g);
    end_home();
}

static void too_late(xp_group *g, uint64_t generation)
{
    xp_place_attach(g, 0);
    EQUAL(xp_place_state(g, 0, generation, XP_PLACE_LOCK), XP_PLACE_OVER);
    xp_place_detach(g, 0);
}

static void alone(xp_group *g, uint64_t generation)
{
    xp_place_attach(g, 0);
    EQUAL(xp_place_state(g, 0, generation, XP_PLACE_LOCK), XP_PLACE_ALONE);
    CHECK(xp_place_end(g, 0, generation));
}

/* An object stands while anybody has it open, and no longer. Its place is used again, for another. */
static void test_places_end_and_begin(void)
{
    uint64_t first, second, third;
    begin_home();
    xp_group *g = home(XP_GROUP_MAKE);
    EQUAL(xp_place_begin(g, XP_PLACE_LOCK, &first), 0);
    CHECK(first & 1);
    EQUAL(xp_place_state(g, 0, first, XP_PLACE_LOCK), XP_PLACE_ALONE);
    EQUAL(xp_place_state(g, 0, first + 2, XP_PLACE_LOCK), XP_PLACE_OVER);
    EQUAL(xp_place_state(g, 0, first, XP_PLACE_ATOMIC), XP_PLACE_OVER);
    pid_t pid = other_process(open_place, first);
    EQUAL(xp_place_state(g, 0, first, XP_PLACE_LOCK), XP_PLACE_SHARED);
    CHECK(!xp_place_end(g, 0, first) && xp_place_at(g, 0)->generation == first);
    end_process(pid);
    CHECK(xp_place_end(g, 0, first) && xp_place_end(g, 0, first) && xp_place_at(g, 0)->generation == first + 1);
    end_process(other_process(too_late, first));
    EQUAL(xp_place_begin(g, XP_PLACE_LOCK, &second), 0);
    EQUAL(second, first + 2);
    end_process(other_process(too_late, first));
    xp_place_detach(g, 0);
    end_process(other_process(alone, second)); /* nobody has it open, so whoever comes ends it */
    EQUAL(xp_place_begin(g, XP_PLACE_LOCK, &third), 0);
    for (uint32_t p = 1; p < PLACES; p++)
        EQUAL(xp_place_begin(g, XP_PLACE_LOCK, &first), p);
    EQUAL(xp_place_begin(g, XP_PLACE_LOCK, &first), XP_GROUP_NOBODY);
    closed(g);
    end_home();
}

static void nothing(xp_group *g, uint64_t generation) { (void)g, (void)generation; }

/* One more process than it has room for, and one that joins twice, are told. */
static void test_room_for_members(void)
{
    xp_error error;
    begin_home();
    xp_group *g = home(XP_GROUP_MAKE);
    CHECK(xp_group_open(H.fd, H.base, H.nbytes, XP_HOME, XP_GROUP_JOIN, 0, 0, &error) == NULL && error.code == EEXIST);
    xp_group *looks = home(XP_GROUP_LOOK);
    EQUAL(looks->member, XP_GROUP_NOBODY);
    closed(looks);
    pid_t pids[] = {other_process(nothing, 0), other_process(nothing, 0)};
    closed(g);
    CHECK((g = home(XP_GROUP_JOIN))->member == 0);
    closed(g);
    pid_t third = other_process(nothing, 0);
    CHECK(xp_group_open(H.fd, H.base, H.nbytes, XP_HOME, XP_GROUP_JOIN, 0, 0, &error) == NULL && error.code == ENOSPC);
    end_process(third);
    end_process(pids[0]);
    end_process(pids[1]);
    CHECK(xp_group_open(H.fd, H.base, H.nbytes, XP_CHANNEL_GROUP, XP_GROUP_JOIN, 0, 0, &error) == NULL && error.code == 0);
    xp_group_head *head = (xp_group_head *)H.base;
    head->members = UINT32_MAX;
    CHECK(xp_group_open(H.fd, H.base, H.nbytes, XP_HOME, XP_GROUP_JOIN, 0, 0, &error) == NULL && error.code == 0);
    head->members = 3;
    head->places = XP_HOME_PLACES;
    CHECK(xp_group_open(H.fd, H.base, H.nbytes, XP_HOME, XP_GROUP_JOIN, 0, 0, &error) == NULL && error.code == 0);
    end_home();
}

/* --- channels ------------------------------------------------------------------------------------------------------ */

static struct {
    xp_group *c;
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

static void test_frames_between_threads(bool wide)
{
    static const int modes[] = {0, 0, XP_MODE_ALL, XP_MODE_NEWEST, XP_MODE_ONE, XP_MODE_ONE};
    enum { ENDS = sizeof modes / sizeof *modes };
    xp_geometry found;
    xp_end ends[ENDS], more[300];
    pthread_t threads[ENDS];
    T.g = (xp_geometry){.nbytes = NUMBERS * 8, .slots = 9, .spare = 4, .writers = 2, .redeliver = 3, .meta_nbytes = 8, .ends = wide ? 300 : 6};
    uint64_t nbytes = xp_channel_nbytes(&T.g);
    CHECK(nbytes != 0);
    int fd = memfd(nbytes, F_SEAL_SHRINK);
    char *base = mapped(fd, nbytes);
    T.data = calloc((T.g.slots + T.g.spare) * NUMBERS, 8);
    T.acknowledged = 0;
    T.c = opened(fd, base, nbytes, XP_CHANNEL_GROUP, XP_GROUP_MAKE, T.g.ends);
    CHECK(T.data != NULL);
    xp_channel_begin(T.c, &T.g, "text", 4);
    CHECK(xp_channel_geometry(T.c, &found) && memcmp(&found, &T.g, sizeof found) == 0);
    for (uint32_t i = 0; i < T.g.ends - ENDS; i++) /* the others have indices above them */
        EQUAL(xp_end_join(&more[i], T.c, &T.g, "", XP_MODE_NEWEST, false, false), 0);
    for (int i = 0; i < ENDS; i++)
        EQUAL(xp_end_join(&ends[i], T.c, &T.g, "", modes[i], false, modes[i] == 0), 0);
    xp_end late;
    EQUAL(xp_end_join(&late, T.c, &T.g, "", XP_MODE_NEWEST, false, false), ENOSPC);
    for (uint32_t i = 0; i < T.g.ends - ENDS; i++) {
        xp_end_leave(&more[i]);
        xp_group_unref(T.c);
    }
    for (int i = 0; i < ENDS; i++)
        CHECK(pthread_create(&threads[i], NULL, modes[i] ? read_frames : write_frames, &ends[i]) == 0);
    for (int i = 0; i < ENDS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    EQUAL(T.acknowledged, 2 * FRAMES);
    for (int i = 0; i < ENDS; i++) {
        xp_end_leave(&ends[i]);
        xp_group_unref(T.c);
    }
    closed(T.c);
    free(T.data);
    CHECK(munmap(base, nbytes) == 0 && close(fd) == 0);
}

/* Whatever a peer writes as the geometry: it is refused, or everything lies in the words. */
static void test_geometries(void)
{
    xp_geometry good = {.nbytes = 8, .slots = 3, .spare = 4, .writers = 1, .ends = 1};
    CHECK(xp_channel_nbytes(&good) > sizeof(xp_channel_words));
    xp_geometry bad[] = {good, good, good, good, good, good, good, good, good, good};
    bad[0].slots = 2;
    bad[1].slots = XP_CHANNEL_SLOTS + 1;
    bad[2].spare = XP_CHANNEL_SPARE + 1;
    bad[3].writers = UINT32_MAX;
    bad[4].nbytes = UINT64_MAX;
    bad[5].meta_nbytes = UINT32_MAX;
    bad[6].history = 2;
    bad[7].ends = 0;
    bad[8].ends = XP_GROUP_MEMBERS + 1;
    bad[9].on_no_readers = XP_RAISE_WITHOUT + 1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EQUAL(xp_channel_nbytes(&bad[i]), 0);
}

/* --- a death after each store ------------------------------------------------------------------------------------- */

#define MOST_STEPS 1000000u /* some processors never complete an exclusive store that is stepped through */
#define NO_STEPS 77

enum { KILLED, ENDED };

static struct {
    xp_group *c;
    xp_end writer, worker; /* of the process that survives */
    char *base, *before;
    int fd;
    uint64_t nbytes;
    bool done[64]; /* by seq */
} K;

static const xp_geometry four_slots = {.nbytes = 8, .slots = 4, .writers = 2, .ends = 4};

static xp_group *channel(bool fresh)
{
    xp_geometry found;
    xp_group *c = opened(K.fd, K.base, K.nbytes, XP_CHANNEL_GROUP, fresh ? XP_GROUP_MAKE : XP_GROUP_JOIN, four_slots.ends);
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

static void work(xp_group *c)
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

static void fill(xp_group *c)
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
static int kill_after(uint32_t store, void (*body)(xp_group *c))
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        xp_group *c = channel(false);
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
        } else if (xp_end_watch(&K.worker) != XP_GONE) {
            EQUAL(got, XP_WAIT);
            break;
        }
    }
    for (seq = 1; seq < K.worker.w->next_seq; seq++)
        CHECK(K.done[seq] && "each frame was handed out until a reader finished it");
}

/* The frames of four slots, of which this process takes `taken` before the other one begins. */
static int survive(uint32_t store, uint32_t taken, void (*body)(xp_group *c))
{
    K.base = mapped(K.fd = memfd(K.nbytes, F_SEAL_SHRINK), K.nbytes);
    K.c = channel(true);
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
    for (uint32_t i = 0; i < four_slots.slots; i++) {
        const xp_slot_words *slot = xp_slot_words_at(&K.worker, i);
        if ((slot->word & 7) == XP_FULL && slot->job % 256 == XP_FINISHED_JOB)
            K.done[slot->word >> 3] = true;
    }
    send_one(&K.writer); /* the first that has the lock after that death, if there is a slot for it */
    take_all();
    for (uint32_t i = 0; i < four_slots.slots; i++)
        EQUAL(send_one(&K.writer), XP_GOT); /* no slot is lost */
    take_all();
    xp_end_leave(&K.writer);
    xp_end_leave(&K.worker);
    xp_group_unref(K.c);
    xp_group_unref(K.c);
    closed(K.c);
    CHECK(munmap(K.base, K.nbytes) == 0 && close(K.fd) == 0);
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
    void (*const bodies[])(xp_group *) = {work, fill};
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
    test_an_index_is_used_again();
    test_places_end_and_begin();
    test_room_for_members();
    test_geometries();
    test_atomics();
    test_frames_between_threads(false);
    test_frames_between_threads(true);
    test_deaths_after_each_store();
    xp_loop_stop();
    return 0;
}
