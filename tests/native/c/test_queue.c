/* Stream queues over the software driver: what is held comes in order, is lost, or fails. */
#include "support.h"

#include "../../../src/engine/queue.h"
#include "../../../src/engine/relay.h"
#include "../../../src/native/mock/software_streams.c"

#include <pthread.h>

#define ROUNDS 200
#define FUNCTION(f) ((uint64_t)(uintptr_t)(f))

static xp_queue_calls *new_calls(void)
{
    xp_queue_calls *calls = calloc(1, sizeof *calls);
    *calls = (xp_queue_calls){.refs = 1, .wait_bits = 64, .store_bits = 64};
    calls->host = (xp_recipe){1, {{.call = {.function = FUNCTION(ss_host), .count = 3},
                                   .kinds = {XP_ARG_QUEUE, XP_ARG_FUNCTION, XP_ARG_DATA}}}};
    calls->store = (xp_recipe){1, {{.call = {.function = FUNCTION(ss_store64), .count = 3},
                                    .kinds = {XP_ARG_QUEUE, XP_ARG_ADDRESS, XP_ARG_POINT}}}};
    calls->wait = calls->store;
    calls->wait.steps[0].call.function = FUNCTION(ss_wait64_geq);
    return calls;
}

typedef struct {
    stream *stream;
    xp_queue *queue;
} stream_queue;

static stream_queue new_queue_of(xp_queue_calls *calls, uint64_t number, int ordering, stream *beside)
{
    stream_queue q;
    CHECK(ss_stream_create(0, beside, &q.stream) == 0);
    q.queue = xp_queue_new(number, FUNCTION(q.stream), calls, ordering, false);
    return q;
}

static stream_queue new_queue(uint64_t number, int ordering, stream *beside)
{
    xp_queue_calls *calls = new_calls();
    stream_queue q = new_queue_of(calls, number, ordering, beside);
    xp_queue_calls_unref(calls);
    return q;
}

static void end_queue(stream_queue q)
{
    UNTIL(xp_queue_look(q.queue).held == 0);
    xp_queue_unref(q.queue);
    CHECK(ss_stream_destroy(q.stream) == 0);
}

static void end(xp_domain *d)
{
    UNTIL(ss_streams() == 0); /* host functions hold their slots until then */
    leave(d);
    xp_loop_stop();
    CHECK(xp_relay_stop(10000000000u));
}

static void wait_on(stream_queue q, xp_slot *s, uint64_t point)
{
    int64_t code;
    int rc = xp_queue_wait(q.queue, s, FUNCTION(s->w), point, &code);
    CHECK((rc == 0 || rc == 1) && code == 0);
}

static uint64_t signal_by(stream_queue q, xp_slot *s)
{
    xp_signalled done;
    xp_queue_signal(q.queue, s, FUNCTION(s->w), &done);
    CHECK(done.memory && done.wrong == NULL && done.after == 0 && done.code == 0);
    return done.point;
}

static uint64_t copy_word(stream_queue q, uint64_t *to, const uint64_t *from)
{
    uint64_t at;
    int64_t code;
    xp_call copy = {FUNCTION(ss_copy), 4, {FUNCTION(q.stream), FUNCTION(to), FUNCTION(from), sizeof *to}};
    CHECK(xp_queue_submit(q.queue, &copy, 1, &at, &code) && code == 0);
    return at;
}

/* A player waits for the other's point of the round, copies what that one copied, and signals. */
typedef struct {
    stream_queue q;
    xp_slot *theirs, *ours;
    uint64_t *to, *from;
    int ahead; /* the first move is not waited for */
} player;

static void *play(void *argument)
{
    player *p = argument;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        if (i > (uint64_t)p->ahead)
            wait_on(p->q, p->theirs, i - (uint64_t)p->ahead);
        copy_word(p->q, p->to + i, p->from + i - (uint64_t)p->ahead);
        EQUAL(signal_by(p->q, p->ours), i);
    }
    return NULL;
}

static void play_on_one_hardware_queue(int ordering)
{
    static uint64_t a[ROUNDS + 1], b[ROUNDS + 1];
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    xp_domain *d = new_commons();
    xp_slot *there = attach(d, xp_new_slot(d)), *back = attach(d, xp_new_slot(d));
    player first = {new_queue(1, ordering, NULL), back, there, a, b, 1};
    player second = {new_queue(2, ordering, first.q.stream), there, back, b, a, 0};
    b[0] = 42; /* a[i] = b[i - 1], b[i] = a[i] */
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, play, &first);
    pthread_create(&threads[1], NULL, play, &second);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    EQUAL(wait_for(back, ROUNDS, XP_FOREVER), XP_DONE);
    EQUAL(b[ROUNDS], 42);
    end_queue(first.q);
    end_queue(second.q);
    UNTIL(ss_streams() == 0);
    detach(there);
    detach(back);
    end(d);
}

/* Six go round in a ring, and two of them at a time may wait in the device: each is now held, now not. */
static void test_places(void)
{
    enum { RING = 6 };
    static uint64_t words[RING][ROUNDS + 1];
    xp_domain *d = new_commons();
    xp_queue_calls *calls = new_calls();
    calls->budget = 2;
    xp_slot *slots[RING];
    player players[RING];
    pthread_t threads[RING];
    for (int i = 0; i < RING; i++)
        slots[i] = attach(d, xp_new_slot(d));
    for (int i = 0; i < RING; i++) {
        int before = (i + RING - 1) % RING;
        players[i] = (player){new_queue_of(calls, (uint64_t)i + 1, XP_ORDER_SHARED, NULL), slots[before], slots[i],
                              words[i], words[before], i == 0};
    }
    words[RING - 1][0] = 42;
    for (int i = 0; i < RING; i++)
        pthread_create(&threads[i], NULL, play, &players[i]);
    for (int i = 0; i < RING; i++)
        pthread_join(threads[i], NULL);
    EQUAL(wait_for(slots[RING - 1], ROUNDS, XP_FOREVER), XP_DONE);
    EQUAL(words[RING - 1][ROUNDS], 42);
    UNTIL(XP_LOAD(&calls->waiting) == 0);
    for (int i = 0; i < RING; i++)
        end_queue(players[i].q);
    xp_queue_calls_unref(calls);
    UNTIL(ss_streams() == 0);
    for (int i = 0; i < RING; i++)
        detach(slots[i]);
    end(d);
}

static void test_shared_hardware(void) { play_on_one_hardware_queue(XP_ORDER_SHARED); }
static void test_held(void) { play_on_one_hardware_queue(XP_ORDER_HELD); }

static void owe_one(process *parent, xp_domain *d, uint32_t index)
{
    EQUAL(submit(attach(d, index), 1), 1);
    tell(parent);
    while (hear(parent))
        ;
}

static void test_a_death_loses_what_is_held(void)
{
    xp_domain *d = new_commons();
    xp_slot *gone = attach(d, xp_new_slot(d)), *ours = attach(d, xp_new_slot(d));
    process other = start(owe_one, d, gone->index);
    CHECK(hear(&other));
    stream_queue q = new_queue(1, XP_ORDER_HELD, NULL);
    uint64_t word = 0, value = 7;
    int stores = ss_calls("store64");
    wait_on(q, gone, 1);
    copy_word(q, &word, &value);
    for (uint64_t i = 1; i <= 20; i++)
        EQUAL(signal_by(q, ours), i);
    EQUAL(xp_queue_look(q.queue).held, 22);
    reap_process(&other, SIGKILL);
    EQUAL(wait_for(ours, 20, XP_FOREVER), XP_LOST);
    UNTIL(xp_queue_look(q.queue).held == 0);
    UNTIL(xp_take_released(gone, 1));
    EQUAL(ss_calls("store64"), stores);
    EQUAL(XP_LOAD(&ours->w->blame), other.pid);
    EQUAL(signal_by(q, ours), 21);
    EQUAL(wait_for(ours, 21, XP_FOREVER), XP_LOST);
    xp_queue_told(q.queue, xp_queue_look(q.queue).handed);
    EQUAL(signal_by(q, ours), 22);
    EQUAL(wait_for(ours, 22, XP_FOREVER), XP_DONE);
    EQUAL(word, 7); /* other work was done */
    end_queue(q);
    detach(gone);
    detach(ours);
    end(d);
}

static void test_a_driver_that_refuses(void)
{
    xp_domain *d = new_commons();
    xp_slot *gate = attach(d, xp_new_slot(d)), *ours = attach(d, xp_new_slot(d));
    stream_queue q = new_queue(1, XP_ORDER_HELD, NULL);
    uint64_t word = 0, value = 7, point;
    wait_on(q, gate, 1);
    uint64_t at = copy_word(q, &word, &value);
    EQUAL(signal_by(q, ours), 1);
    ss_rule("copy", 1, 719, 1);
    CHECK(xp_signal(gate, &point) == NULL);
    UNTIL(ss_calls("copy") > 0 && xp_queue_look(q.queue).held == 2);
    CHECK(!xp_relay_stop(1000000)); /* it is in the driver */
    CHECK(xp_relay_start() == 0);
    ss_go("copy");
    EQUAL(wait_for(ours, 1, XP_FOREVER), XP_LOST);
    EQUAL(xp_queue_look(q.queue).failed_at, at);
    EQUAL(xp_queue_look(q.queue).failed, 719);
    end_queue(q);
    detach(gate);
    detach(ours);
    end(d);
}

static int done;

static void count(xp_job *job)
{
    (void)job;
    __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST);
}

static void test_a_stop_comes_after_the_jobs(void)
{
    for (int i = 1; i <= 100; i++) {
        xp_job job = {.run = count};
        xp_relay_post(&job);
        CHECK(xp_relay_start() == 0);
        CHECK(xp_relay_stop(10000000000u)); /* mostly before the new thread has looked for jobs */
        EQUAL(__atomic_load_n(&done, __ATOMIC_SEQ_CST), i);
    }
}

int main(void)
{
    xp_engine_init();
    RUN(test_a_death_loses_what_is_held);
    RUN(test_shared_hardware);
    RUN(test_held);
    RUN(test_places);
    RUN(test_a_driver_that_refuses);
    RUN(test_a_stop_comes_after_the_jobs);
    return 0;
}
