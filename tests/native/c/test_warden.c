/* Deaths of other processes: what they owe is lost, whoever waits is let go. */
#include "support.h"

#include <poll.h>

static void owe_two(process *parent, xp_domain *d, uint32_t index)
{
    xp_slot *s = attach(d, index);
    EQUAL(submit(s, 1), 1);
    EQUAL(submit(s, 1), 2);
    xp_complete(s, 1);
    tell(parent);
    while (hear(parent))
        ;
}

static void free_due(uint64_t token)
{
    xp_node *node = xp_due();
    CHECK(node != NULL && node->next == NULL);
    EQUAL(node->token, token);
    free(node);
}

static void test_what_the_dead_owe_is_lost(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    process other = start(owe_two, d, s->index);
    CHECK(hear(&other));
    EQUAL(xp_node_add(s, 1, 11, XP_TOKEN, NULL), 1); /* done */
    EQUAL(xp_node_add(s, 2, 12, XP_TOKEN, NULL), 0);
    EQUAL(xp_guard(s, 2, NULL, 0, false), 0);
    CHECK(xp_loop_running());
    EQUAL(wait_for(s, 2, 20000000), XP_PENDING);
    struct pollfd notified = {.fd = xp_notification_fd(), .events = POLLIN};
    reap_process(&other, SIGKILL);
    EQUAL(wait_for(s, 2, XP_FOREVER), XP_LOST);
    EQUAL(XP_LOAD(&s->w->cause), XP_CAUSE_DEATH);
    EQUAL(XP_LOAD(&s->w->blame), other.pid);
    EQUAL(poll(&notified, 1, 20000), 1);
    free_due(12);
    UNTIL(XP_LOAD(&s->w->value) >= 2); /* the device, too, is let go */
    UNTIL(xp_take_released(s, 2));
    EQUAL(xp_full_state(s, 1, true), XP_DONE);
    detach(s);
    leave(d);
    xp_loop_stop();
}

static void only_attach(process *parent, xp_domain *d, uint32_t index)
{
    attach(d, index);
    tell(parent);
    while (hear(parent))
        ;
}

static void test_nobody_is_left_who_signals(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    process other = start(only_attach, d, s->index);
    CHECK(hear(&other));
    EQUAL(wait_for(s, 5, 20000000), XP_PENDING);
    EQUAL(xp_guard(s, 3, NULL, 0, false), 0);
    reap_process(&other, SIGKILL);
    EQUAL(wait_for(s, 5, XP_FOREVER), XP_LOST); /* nobody is left who could signal it */
    UNTIL(XP_LOAD(&s->w->value) >= 3);
    detach(s);
    leave(d);
    xp_loop_stop();
}

static void signal_once(process *parent, xp_domain *d, uint32_t index)
{
    uint64_t point;
    CHECK(xp_signal(attach(d, index), &point) == NULL);
    tell(parent);
    while (hear(parent))
        ;
}

static void only_wait(process *parent, xp_domain *d, uint32_t index)
{
    xp_error error;
    CHECK(xp_attach(d, index, XP_ONLY_WAITS, &error) != NULL);
    tell(parent);
    while (hear(parent))
        ;
}

/* Another one has the event open all the time: nobody relies on it. */
static void test_a_publisher_dies(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    process reader = start(only_attach, d, s->index);
    CHECK(hear(&reader));
    process publisher = start(signal_once, d, s->index);
    CHECK(hear(&publisher));
    EQUAL(xp_guard(s, 2, NULL, 0, false), 0);
    EQUAL(wait_for(s, 2, 20000000), XP_PENDING);
    reap_process(&publisher, SIGKILL);
    uint64_t killed = xp_now();
    EQUAL(wait_for(s, 2, XP_FOREVER), XP_LOST);
    UNTIL(XP_LOAD(&s->w->value) >= 2);
    CHECK(xp_now() - killed < 1000000000u);
    uint64_t point;
    CHECK(xp_signal(s, &point) == NULL && point == 3);
    EQUAL(wait_for(s, 4, 0), XP_LOST); /* its own signals end no loss for it */
    reap_process(&reader, SIGKILL);
    detach(s);
    leave(d);
    xp_loop_stop();
}

static void test_only_waiters_die(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    process reader = start(only_wait, d, s->index);
    CHECK(hear(&reader));
    reap_process(&reader, SIGKILL);
    UNTIL(xp_reap_all(d) == 1);
    EQUAL(wait_for(s, 1, 20000000), XP_PENDING);
    EQUAL(XP_LOAD(&s->w->roster) & XP_ROSTER_LOSS, 0);
    detach(s);
    leave(d);
    xp_loop_stop();
}

static void claim_all(process *parent, xp_domain *d, uint32_t index)
{
    xp_roles *r = xp_roles_at(d, index);
    for (uint32_t m = 1; m < XP_MEMBERS; m++) {
        xp_lock(d->fd, XP_LIFE_BYTE + (int64_t)m, true);
        XP_STORE(&xp_member_at(d, m)->state, 1);
        xp_set(r->candidates, m);
    }
    tell(parent);
    while (hear(parent))
        ;
}

/* A peer says that it is everybody: whoever waits opens no thousand fds, and sees it die all the same. */
static void test_pidfds_are_bounded(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    process liar = start(claim_all, d, s->index);
    CHECK(hear(&liar));
    EQUAL(wait_for(s, 1, 20000000), XP_PENDING);
    uint32_t watched = 0;
    pthread_mutex_lock(&d->mu);
    for (uint32_t m = 0; m < XP_MEMBERS; m++)
        watched += xp_bit(d->watched, m);
    pthread_mutex_unlock(&d->mu);
    EQUAL(watched, 1); /* one for each process, and 64 at most */
    reap_process(&liar, SIGKILL);
    uint64_t killed = xp_now();
    EQUAL(wait_for(s, 1, 5000000000u), XP_LOST);
    CHECK(xp_now() - killed < 1000000000u);
    detach(s);
    leave(d);
    xp_loop_stop();
}

static void owe_one_behind(process *parent, xp_domain *d, uint32_t index)
{
    EQUAL(submit(attach(d, index), 1), 2);
    tell(parent);
    while (hear(parent))
        ;
}

/* The loss of a dead one's point waits for a living one's before it. */
static void test_a_loss_is_put_off(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    xp_view v;
    EQUAL(submit(s, 1), 1);
    process other = start(owe_one_behind, d, s->index);
    CHECK(hear(&other));
    EQUAL(xp_node_add(s, 1, 11, XP_TOKEN, NULL), 0); /* the warden looks after the event */
    reap_process(&other, SIGKILL);
    EQUAL(wait_for(s, 2, XP_FOREVER), XP_LOST); /* which it will be */
    xp_read(s->w, &v);
    EQUAL(xp_state(&v, 1), XP_PENDING);
    xp_complete(s, 1);
    UNTIL((xp_read(s->w, &v), xp_state(&v, 2) == XP_LOST)); /* and now it is */
    EQUAL(xp_state(&v, 1), XP_DONE);
    int pid;
    uint64_t since;
    bool alive;
    UNTIL(!xp_look(d, 1, &pid, &since, &alive));
    detach(s);
    leave(d);
    xp_loop_stop();
    for (xp_node *node = xp_due(), *next; node; node = next) {
        next = node->next;
        free(node);
    }
}

static void test_a_stopped_process_is_alive(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    process other = start(owe_two, d, s->index);
    CHECK(hear(&other) && kill(other.pid, SIGSTOP) == 0);
    EQUAL(wait_for(s, 2, 50000000), XP_PENDING);
    reap_process(&other, SIGKILL);
    EQUAL(wait_for(s, 2, XP_FOREVER), XP_LOST);
    detach(s);
    leave(d);
    xp_loop_stop();
}

static void lose_one_another(process *parent, xp_domain *d, uint32_t index)
{
    xp_slot *s = attach(d, index);
    tell(parent);
    EQUAL(wait_for(s, 1, XP_FOREVER), XP_DONE); /* the parent's */
    EQUAL(submit(s, 1), 2);
    xp_complete(s, 2);
    EQUAL(wait_for(s, 3, XP_FOREVER), XP_LOST);
    leave(d);
}

static void test_signals_cross_processes(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    process other = start(lose_one_another, d, s->index);
    uint64_t point;
    CHECK(hear(&other));
    CHECK(xp_signal(s, &point) == NULL);
    EQUAL(wait_for(s, 2, XP_FOREVER), XP_DONE);
    EQUAL(submit(s, 1), 3);
    xp_fail(s, XP_CAUSE_QUEUE);
    reap_process(&other, 0);
    detach(s);
    leave(d);
    xp_loop_stop();
}

/* --- threads come and go while another process dies --------------------------------------------------------------- */

static xp_domain *shared;
static uint32_t shared_index;
static int over;

static void *come_and_go(void *arg)
{
    uint64_t token = (uint64_t)(uintptr_t)arg << 32;
    xp_error error;
    while (!XP_LOAD(&over)) {
        xp_slot *s = xp_attach(shared, shared_index, XP_MAY_SIGNAL, &error);
        CHECK(s != NULL);
        CHECK(xp_node_add(s, 2, ++token, XP_TOKEN, NULL) >= 0);
        CHECK(xp_guard(s, 2, NULL, 0, false) >= 0);
        wait_for(s, 2, 100000);
        if (token % 2)
            xp_node_cancel(s, token);
        detach(s);
        for (xp_node *node = xp_due(), *next; node; node = next) {
            next = node->next;
            free(node);
        }
    }
    return NULL;
}

static void test_threads_while_one_dies(void)
{
    pthread_t threads[3];
    shared = new_commons();
    xp_slot *s = attach(shared, shared_index = xp_new_slot(shared));
    process other = start(owe_two, shared, s->index);
    CHECK(hear(&other));
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, come_and_go, (void *)(i + 1)) == 0);
    usleep(50000);
    reap_process(&other, SIGKILL);
    EQUAL(wait_for(s, 2, XP_FOREVER), XP_LOST);
    usleep(50000);
    XP_STORE(&over, 1);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    detach(s);
    leave(shared);
    xp_loop_stop();
}

static int open_fds(void)
{
    int count = 0;
    for (int fd = 0; fd < 2048; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void claim_everybody(process *parent, xp_domain *d, uint32_t index)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = XP_LIFE_BYTE + 1, .l_len = XP_MEMBERS - 1};
    CHECK(fcntl(d->fd, F_SETLK, &all) == 0);
    for (uint32_t m = 1; m < XP_MEMBERS; m++)
        xp_set(xp_words_at(d, index)->attached, m);
    tell(parent);
    while (hear(parent))
        ;
}

static void test_one_process_is_one_member(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    process other = start(claim_everybody, d, s->index);
    CHECK(hear(&other));
    CHECK(xp_loop_start() == 0);
    int before = open_fds();
    EQUAL(wait_for(s, 1, 50000000), XP_PENDING);
    CHECK(open_fds() <= before + 1);
    reap_process(&other, SIGKILL);
    detach(s);
    leave(d);
    xp_loop_stop();
}

static int filling;

/* Fills the bell up as often as it can, by writes that do not block, and has everybody else's block. */
static void *fill(void *arg)
{
    int bell = *(int *)arg;
    while (XP_LOAD(&filling)) {
        fcntl(bell, F_SETFL, O_NONBLOCK);
        for (uint64_t part = 1ull << 63; part; part >>= 1)
            if (write(bell, &(uint64_t){part - 1}, sizeof part) < 0) {
                /* no room for that much */
            }
        fcntl(bell, F_SETFL, 0);
    }
    return NULL;
}

static void test_a_full_bell_that_blocks_holds_up_nobody(void)
{
    xp_domain *d = new_commons();
    xp_slot *s = attach(d, xp_new_slot(d));
    pthread_t thread;
    XP_STORE(&filling, 1);
    CHECK(pthread_create(&thread, NULL, fill, &d->bell) == 0);
    alarm(20);
    for (uint64_t end = xp_now() + 2000000000u; xp_now() < end;)
        xp_ring_bell(d->bell);
    alarm(0);
    CHECK(xp_node_add(s, 1, 21, XP_TOKEN, NULL) == 0); /* and it rings still */
    struct pollfd notified = {.fd = xp_notification_fd(), .events = POLLIN};
    uint64_t point;
    CHECK(xp_signal(s, &point) == NULL);
    EQUAL(poll(&notified, 1, 20000), 1);
    free_due(21);
    XP_STORE(&filling, 0);
    pthread_join(thread, NULL);
    detach(s);
    leave(d);
    xp_loop_stop();
}

int main(void)
{
    xp_engine_init();
    RUN(test_what_the_dead_owe_is_lost);
    RUN(test_nobody_is_left_who_signals);
    RUN(test_a_publisher_dies);
    RUN(test_only_waiters_die);
    RUN(test_pidfds_are_bounded);
    RUN(test_a_loss_is_put_off);
    RUN(test_a_stopped_process_is_alive);
    RUN(test_signals_cross_processes);
    RUN(test_threads_while_one_dies);
    RUN(test_one_process_is_one_member);
    RUN(test_a_full_bell_that_blocks_holds_up_nobody);
    return 0;
}
