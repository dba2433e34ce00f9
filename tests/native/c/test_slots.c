/* Points: submitted, complete, lost, waited for; and what a hostile peer may store. */
#include "support.h"

#include <dlfcn.h>
#include <sched.h>
#include <time.h>

static xp_domain *d;
static xp_slot *s;

static void set_up(void)
{
    d = new_commons();
    s = attach(d, xp_new_slot(d));
}

static void tear_down(void)
{
    detach(s);
    leave(d);
}

/* Each time the engine gives up a domain's mutex another thread could look: this is what it would see. */
static bool looking;
static int seen;

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    static int (*unlock)(pthread_mutex_t *);
    if (XP_RELAXED(&unlock) == NULL)
        XP_STORE_RELAXED(&unlock, (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_unlock"));
    int rc = XP_RELAXED(&unlock)(mutex);
    if (looking && mutex == &s->d->mu) {
        looking = false;
        seen |= 1 << xp_full_state(s, 1, true);
        looking = true;
    }
    return rc;
}

static int state(uint64_t point)
{
    xp_view v;
    xp_read(s->w, &v);
    return xp_state(&v, point);
}

static void test_signals(void)
{
    set_up();
    uint64_t point;
    EQUAL(state(1), XP_PENDING);
    CHECK(xp_signal(s, &point) == NULL);
    EQUAL(point, 1);
    EQUAL(state(1), XP_DONE);
    EQUAL(wait_for(s, 1, 0), XP_DONE);
    EQUAL(wait_for(s, 2, 1000000), XP_PENDING);
    tear_down();
}

static void test_submitted_points(void)
{
    set_up();
    uint64_t point, after;
    bool host;
    EQUAL(submit(s, 1), 1);
    CHECK(xp_submit(s, 1, false, &point, &after, &host) == NULL && point == 2 && after == 0 && !host);
    CHECK(xp_submit(s, 2, false, &point, &after, &host) == NULL && point == 3 && after == 2 && host);
    CHECK(xp_signal(s, &point) != NULL);
    xp_view v;
    EQUAL(xp_lowest_owed(s->w, &v, d->member), 1);
    CHECK(xp_owes(s->w, d->member));
    xp_complete(s, 2);
    EQUAL(state(2), XP_DONE);
    EQUAL(state(3), XP_PENDING);
    EQUAL(xp_lowest_owed(s->w, &v, d->member), 3);
    xp_fail(s, XP_CAUSE_QUEUE);
    EQUAL(state(2), XP_DONE);
    EQUAL(state(3), XP_LOST);
    EQUAL(s->w->cause, XP_CAUSE_QUEUE);
    EQUAL(s->w->blame, getpid());
    EQUAL(XP_LOAD(&s->w->value), 3); /* devices are let go */
    xp_complete(s, 3);               /* too late: a release is final */
    EQUAL(state(3), XP_LOST);
    CHECK(xp_signal(s, &point) == NULL && point == 4); /* heals */
    EQUAL(state(4), XP_DONE);
    tear_down();
}

static void test_late_losses(void)
{
    set_up();
    submit(s, 1);
    submit(s, 1);
    CHECK(!xp_lose_late(s, 2, XP_CAUSE_QUEUE, 1)); /* the one before is outstanding */
    xp_complete(s, 1);
    CHECK(xp_lose_late(s, 2, XP_CAUSE_QUEUE, 1));
    EQUAL(state(1), XP_DONE);
    EQUAL(state(2), XP_LOST);
    submit(s, 1);
    xp_complete(s, 3);
    XP_STORE(&s->w->value, 2); /* the device's late store */
    EQUAL(state(3), XP_DONE);
    tear_down();
}

/* Devices of another process wait for a lost point: what completes late does not let them go before it does. */
static void test_a_release_is_final(void)
{
    set_up();
    submit(s, 1);
    XP_STORE(&s->w->guards, 1); /* its */
    xp_lose(s->w, d->bell, XP_CAUSE_QUEUE, 1, 0);
    EQUAL(XP_LOAD(&s->w->value), 0);
    xp_complete(s, 1);
    EQUAL(XP_LOAD(&s->w->value), 0);
    EQUAL(state(1), XP_LOST);
    XP_STORE(&s->w->guards, 0);
    xp_finish(s->w);
    EQUAL(XP_LOAD(&s->w->value), 1);
    tear_down();
}

static void test_guards(void)
{
    set_up();
    submit(s, 1);
    EQUAL(xp_guard(s, 1, NULL, 0, false), 0);
    EQUAL(xp_guard(s, 1 + XP_OUTSTANDING_MAX, NULL, 0, false), XP_TOO_FAR);
    EQUAL(XP_LOAD(&s->w->guards), 1);
    xp_lose(s->w, d->bell, XP_CAUSE_QUEUE, 1, 0);
    EQUAL(state(1), XP_LOST);
    UNTIL(XP_LOAD(&s->w->value) == 1 && XP_LOAD(&s->w->guards) == 0); /* the warden lets the device go */
    CHECK(xp_take_released(s, 1) && !xp_take_released(s, 1));
    EQUAL(xp_guard(s, 1, NULL, 0, false), 1);
    tear_down();
    xp_loop_stop();
}

static void test_hostile_words(void)
{
    static const uint64_t nasty[] = {UINT64_MAX, UINT64_MAX - 1, 1ull << 63, 1ull << 44, XP_POINT_MAX, 1ull << 20};
    uint64_t point, after, mask[XP_MASK_WORDS];
    bool host;
    xp_view v;
    set_up();
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 4; k++) {
            uint64_t *words[] = {&s->w->value, &s->w->pending, &s->w->lost, &s->w->roster};
            for (int n = 0; n < 4; n++)
                XP_STORE(words[n], n == k ? nasty[i] : 0);
            xp_lowest_owed(s->w, &v, 1);
            xp_lowest_owed(s->w, &v, XP_NO_MEMBER);
            xp_owing(s->w, mask);
            xp_full_state(s, 1, true);
            xp_full_state(s, XP_POINT_MAX, true);
            xp_finish(s->w);
            xp_complete(s, XP_POINT_MAX);
            xp_lose(s->w, d->bell, XP_CAUSE_QUEUE, 1, 0);
            xp_abandon(s, 3);
            if (xp_submit(s, 1, true, &point, &after, &host) == NULL)
                CHECK(point > 0 && point <= XP_POINT_MAX && after < point);
            if (xp_signal(s, &point) == NULL)
                CHECK(point > 0 && point <= XP_POINT_MAX);
            xp_read(s->w, &v);
            CHECK(v.effective >= v.hi && v.lo <= v.hi && v.effective <= 1ull << 44);
        }
    xp_words *w = s->w;
    XP_STORE(&w->value, 0);
    XP_STORE(&w->pending, 0);
    XP_STORE(&w->lost, 0);
    tear_down();
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

#define POINTS 3000u

static void *signal_all(void *arg)
{
    (void)arg;
    uint64_t point = 0;
    while (point < POINTS)
        CHECK(xp_signal(s, &point) == NULL);
    return NULL;
}

static void *wait_all(void *arg)
{
    (void)arg;
    for (uint64_t point = 1; point <= POINTS; point += 7) {
        uint64_t start = xp_now();
        int got = xp_spin(s, point, start, start + 20000, 20000);
        EQUAL(got ? got : wait_for(s, point, XP_FOREVER), XP_DONE);
    }
    return NULL;
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int spin(uint64_t point, uint64_t full)
{
    uint64_t start = xp_now();
    return xp_spin(s, point, start, XP_FOREVER, full);
}

static void test_spins_have_to_pay(void)
{
    uint64_t point, full = 1000000, before;
    set_up();
    before = cpu_ns();
    for (int i = 0; i < 60; i++) { /* a lucky spin now and then does not pay for the others */
        CHECK(xp_signal(s, &point) == NULL);
        spin(point, full);
        for (int j = 0; j < 15; j++)
            EQUAL(spin(point + 1, full), XP_PENDING);
    }
    CHECK(cpu_ns() - before < 20 * full);
    bool back = false;
    for (int tries = 0; tries < 100 && !back; tries++) { /* each spin that loses the CPU meanwhile does not pay */
        for (int i = 0; i < 2000; i++) /* where they pay, they come back */
            spin(point, full);
        back = spin(point, full) == XP_DONE;
        before = xp_now();
        back = spin(point + 1, full) == XP_PENDING && xp_now() - before >= full && back;
    }
    CHECK(back);
    tear_down();
}

static void test_a_pinned_process_spins(void)
{
    cpu_set_t all, one;
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
        return;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    set_up();
    uint64_t before = xp_now();
    EQUAL(spin(1, 20000), XP_PENDING);
    CHECK(xp_now() - before >= 20000);
    tear_down();
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
}

static void *notify_all(void *arg)
{
    (void)arg;
    for (uint64_t point = 1; point <= POINTS; point += 50) {
        int rc = xp_node_add(s, point, point, XP_TOKEN, NULL);
        CHECK(rc == 0 || rc == 1);
        if (point % 3 == 0)
            xp_node_cancel(s, point);
    }
    return NULL;
}

static void test_threads_signal_and_wait(void)
{
    void *(*bodies[])(void *) = {wait_all, notify_all, wait_all, signal_all};
    pthread_t threads[4];
    set_up();
    CHECK(xp_notification_fd() >= 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, bodies[i], NULL) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    EQUAL(state(POINTS), XP_DONE);
    tear_down(); /* what is not due yet becomes due */
    xp_loop_stop();
    for (xp_node *node = xp_due(), *next; node; node = next) {
        next = node->next;
        free(node);
    }
}

static unsigned done;

static void *submit_and_complete(void *arg)
{
    uint64_t queue = (uint64_t)(uintptr_t)arg, point, after;
    bool host;
    for (int i = 0; i < 500; i++) {
        CHECK(xp_submit(s, queue, queue == 2, &point, &after, &host) == NULL);
        if (after)
            EQUAL(wait_for(s, after, XP_FOREVER), XP_DONE);
        xp_complete(s, point);
        __atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void test_threads_share_an_event(void)
{
    pthread_t threads[3];
    set_up();
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, submit_and_complete, (void *)(i + 1)) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    EQUAL(done, 1500);
    EQUAL(XP_LOAD(&s->w->pending) >> 21, 1500);
    EQUAL(state(1500), XP_DONE);
    tear_down();
    xp_loop_stop();
}

/* A peer may write anything where the roles are: the reads end. */
static void test_hostile_roles(void)
{
    set_up();
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++) {
        XP_STORE(&s->roles->signallers[i], UINT64_MAX);
        XP_STORE(&s->roles->candidates[i], UINT64_MAX);
    }
    for (uint64_t roster = 0; roster < 16; roster++) {
        XP_STORE(&s->w->roster, roster | (roster << 4 & XP_ROSTER_JOINED));
        EQUAL(wait_for(s, 1, 100000), roster % 4 == 0 || (roster << 4 & XP_ROSTER_JOINED) > 0x10 ? XP_PENDING : XP_LOST);
    }
    uint64_t point;
    CHECK(xp_signal(s, &point) == NULL && point == 1);
    tear_down();
    xp_loop_stop();
}

static void *open_and_signal(void *arg)
{
    (void)arg;
    xp_error error;
    uint64_t point;
    for (int i = 0; i < 300; i++) {
        xp_slot *mine = xp_attach(d, s->index, i % 3, &error);
        CHECK(mine != NULL);
        CHECK(xp_signal(mine, &point) == NULL);
        detach(mine);
    }
    return NULL;
}

/* Roles are the process's: its last object that may signal ends them. */
static void test_threads_open_and_signal(void)
{
    pthread_t threads[3];
    set_up();
    CHECK(xp_bit(s->roles->candidates, 0) && !xp_bit(s->roles->signallers, 0));
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, open_and_signal, NULL) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CHECK(xp_bit(s->roles->candidates, 0) && xp_bit(s->roles->signallers, 0));
    xp_error error;
    xp_slot *only = xp_attach(d, s->index, XP_ONLY_WAITS, &error);
    xp_detach(s);
    CHECK(!xp_bit(s->roles->candidates, 0) && !xp_bit(s->roles->signallers, 0) && xp_bit(s->w->attached, 0));
    EQUAL(XP_LOAD(&s->w->roster) & XP_ROSTER_LOSS, 0);
    detach(only);
    xp_slot_unref(s);
    leave(d);
}

static void opens(process *parent, xp_domain *mine, uint32_t index)
{
    attach(mine, index);
    tell(parent);
    CHECK(hear(parent));
}

/* The exporter is gone, and a candidate lives. */
static void signals_first(process *parent, xp_domain *mine, uint32_t index)
{
    uint64_t point;
    s = attach(mine, index);
    tell(parent);
    CHECK(hear(parent));
    EQUAL(xp_full_state(s, 1, true), XP_PENDING);
    looking = true;
    if (index == 0)
        CHECK(xp_signal(s, &point) == NULL && point == 1);
    else
        EQUAL(submit(s, 1), 1);
    looking = false;
    CHECK(seen != 0 && !(seen & 1 << XP_LOST));
    EQUAL(xp_full_state(s, 2, true), XP_LOST);
}

static void test_the_point_of_a_first_signal_is_not_lost_to_others_of_its_process(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        xp_domain *mine = new_commons();
        EQUAL(xp_new_slot(mine), 0);
        EQUAL(xp_new_slot(mine), 1);
        process other = start(opens, mine, i), first = start(signals_first, mine, i);
        CHECK(hear(&other) && hear(&first));
        leave(mine);
        tell(&first);
        reap_process(&first, 0);
        tell(&other);
        reap_process(&other, 0);
    }
}

int main(void)
{
    xp_engine_init();
    RUN(test_the_point_of_a_first_signal_is_not_lost_to_others_of_its_process); /* forks, so before there are threads */
    RUN(test_hostile_roles);
    RUN(test_threads_open_and_signal);
    RUN(test_signals);
    RUN(test_submitted_points);
    RUN(test_late_losses);
    RUN(test_a_release_is_final);
    RUN(test_guards);
    RUN(test_hostile_words);
    RUN(test_spins_have_to_pay);
    RUN(test_a_pinned_process_spins);
    RUN(test_threads_signal_and_wait);
    RUN(test_threads_share_an_event);
    return 0;
}
