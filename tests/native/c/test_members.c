/* Joining, holding, dying. */
#include "support.h"

static void refuse(int fd, const char *why)
{
    xp_error error;
    int bell = eventfd(0, EFD_CLOEXEC);
    CHECK(xp_join(fd, bell, cookie, false, &error) == NULL);
    EQUAL(error.code, 0);
    if (strstr(error.what, why) == NULL)
        fprintf(stderr, "%s\n", error.what);
    CHECK(strstr(error.what, why) != NULL);
    CHECK(close(fd) == 0 && close(bell) == 0); /* they stayed ours */
}

static void test_refusals(void)
{
    xp_domain *d = new_commons();
    refuse(memfd(XP_COMMONS_SIZE, 0), "F_SEAL_SHRINK");
    refuse(memfd(4096, F_SEAL_SHRINK), "size");
    refuse(memfd(XP_COMMONS_SIZE + 4096, F_SEAL_SHRINK), "size");
    refuse(memfd(XP_COMMONS_SIZE, F_SEAL_SHRINK), "not a commons");
    refuse(eventfd(0, EFD_CLOEXEC), "not a memfd");
    xp_error error;
    CHECK(xp_join(d->fd, d->bell, cookie, false, &error) == NULL && strstr(error.what, "already"));
    leave(d);
}

static void hold_and_wait(process *parent, xp_domain *d, uint32_t index)
{
    EQUAL(d->member, 1);
    CHECK(xp_hold(d, 7) && xp_hold(d, 8));
    attach(d, index);
    tell(parent);
    while (hear(parent))
        ;
}

static void test_death_is_seen(void)
{
    xp_domain *d = new_commons();
    uint32_t index = xp_new_slot(d), found[XP_MEMBERS];
    process other = start(hold_and_wait, d, index);
    CHECK(hear(&other));
    EQUAL(xp_holders(d, 7, found), 1);
    EQUAL(found[0], 1);
    CHECK(xp_bit(xp_words_at(d, index)->attached, 1));
    int pid;
    uint64_t since;
    bool alive;
    CHECK(xp_look(d, 1, &pid, &since, &alive) && alive && pid == other.pid);
    EQUAL(xp_reap_all(d), 0);
    reap_process(&other, SIGKILL);
    UNTIL(xp_holders(d, 7, found) == 0);
    CHECK(!xp_bit(xp_words_at(d, index)->attached, 1) && !xp_look(d, 1, &pid, &since, &alive));
    EQUAL(xp_reap_all(d), 0); /* done once */
    leave(d);
}

static void leave_again(process *parent, xp_domain *d, uint32_t index)
{
    (void)index;
    CHECK(xp_hold(d, 3));
    leave(d);
    tell(parent);
}

static void test_clean_exit(void)
{
    xp_domain *d = new_commons();
    uint32_t found[XP_MEMBERS];
    process other = start(leave_again, d, 0);
    CHECK(hear(&other));
    reap_process(&other, 0);
    EQUAL(xp_holders(d, 3, found), 0);
    CHECK(!xp_reached(d, 3));
    EQUAL(xp_member_at(d, 1)->state, 0);
    leave(d);
}

static void use_and_wait(process *parent, xp_domain *d, uint32_t index)
{
    (void)index;
    CHECK(xp_hold(d, 7) && xp_use(d, 9));
    tell(parent);
    while (hear(parent))
        ;
}

static void hide_and_wait(process *parent, xp_domain *d, uint32_t index)
{
    XP_STORE(&xp_member_at(d, d->member)->pid_namespace, 1);
    use_and_wait(parent, d, index);
}

static void fork_and_wait(process *parent, xp_domain *d, uint32_t index)
{
    (void)index;
    CHECK(xp_hold(d, 7) && xp_use(d, 9) && xp_hold(d, 5));
    xp_drop(d, 5);
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    CHECK(waitpid(pid, NULL, 0) == pid);
    CHECK(xp_hold(d, 6));
    tell(parent);
    while (hear(parent))
        ;
}

/* What a dead one had is out of everybody's reach, if it is seen to have ended; else never. */
static void test_reach(void)
{
    void (*const bodies[])(process *, xp_domain *, uint32_t) = {use_and_wait, hide_and_wait, fork_and_wait};
    for (int i = 0; i < 3; i++) {
        xp_domain *d = new_commons();
        uint32_t found[XP_MEMBERS];
        process other = start(bodies[i], d, 0);
        CHECK(hear(&other));
        CHECK(xp_reached(d, 7) && xp_reached(d, 9) && xp_may_use(d, 9) && !xp_may_use(d, 7) && !xp_reached(d, 10));
        EQUAL(xp_holders(d, 9, found), 0); /* a use is not a hold */
        EQUAL(xp_marked(d, 7), i == 2);
        reap_process(&other, SIGKILL);
        UNTIL(!xp_reached(d, 7) && !xp_reached(d, 9));
        EQUAL(xp_marked(d, 7), i != 0);
        EQUAL(xp_marked(d, 9), i != 0);
        CHECK(!xp_marked(d, 5) && !xp_marked(d, 6));
        xp_clear_marks(d, 7);
        CHECK(!xp_marked(d, 7));
        leave(d);
    }
}

static void leave_with_it(process *parent, xp_domain *d, uint32_t index)
{
    (void)index;
    CHECK(xp_hold(d, 3) && xp_hold(d, 4));
    xp_drop(d, 4);
    leave(d);
    tell(parent);
    while (hear(parent))
        ;
}

static void test_who_leaves_may_still_read(void)
{
    xp_domain *d = new_commons();
    process other = start(leave_with_it, d, 0);
    CHECK(hear(&other));
    CHECK(xp_reached(d, 3) && xp_marked(d, 3) && !xp_reached(d, 4) && !xp_marked(d, 4));
    EQUAL(xp_reap_all(d), 0);
    reap_process(&other, SIGKILL);
    UNTIL(!xp_reached(d, 3));
    CHECK(xp_marked(d, 3));
    leave(d);
}

static void test_slots_are_used_again(void)
{
    xp_domain *d = new_commons();
    uint32_t first = xp_new_slot(d), second = xp_new_slot(d);
    CHECK(first != second && !xp_release_slot(d, 12345));
    xp_slot *s = attach(d, first);
    uint64_t point;
    CHECK(xp_signal(s, &point) == NULL && point == 1);
    CHECK(xp_release_slot(d, first) && !xp_release_slot(d, first));
    uint32_t third = xp_new_slot(d);
    CHECK(third != first); /* it is attached still */
    detach(s);
    EQUAL(xp_new_slot(d), first);
    s = attach(d, first);
    CHECK(xp_signal(s, &point) == NULL && point == 1);
    detach(s);
    CHECK(xp_leave_if_idle(d));
    leave(d);
}

static void test_opens_are_counted(void)
{
    xp_domain *d = new_commons();
    xp_set_opens(d, 5, 1);
    CHECK(xp_take_open(d, 5) && !xp_take_open(d, 5));
    xp_give_open(d, 5);
    EQUAL(xp_opens_left(d, 5), 1);
    xp_set_opens(d, 5, INT32_MIN); /* by a peer */
    CHECK(!xp_take_open(d, 5) && xp_opens_left(d, 5) == 0);
    leave(d);
}

static void *hold_often(void *arg)
{
    xp_domain *d = arg;
    uint32_t found[XP_MEMBERS];
    xp_error error;
    for (uint32_t i = 0; i < 2000; i++) {
        CHECK(xp_hold(d, i % 4));
        xp_slot *s = xp_attach(d, 0, XP_MAY_SIGNAL, &error);
        CHECK(s != NULL && xp_holders(d, i % 4, found) == 0);
        detach(s);
        xp_drop(d, i % 4);
    }
    return NULL;
}

static void test_threads_hold_and_attach(void)
{
    xp_domain *d = new_commons();
    pthread_t threads[4];
    EQUAL(xp_new_slot(d), 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, hold_often, d) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(!xp_bit(xp_words_at(d, 0)->attached, 0));
    CHECK(xp_hold(d, 0) && !xp_leave_if_idle(d));
    xp_drop(d, 0);
    CHECK(xp_leave_if_idle(d) && !xp_hold(d, 0));
    xp_error error;
    CHECK(xp_attach(d, 0, XP_MAY_SIGNAL, &error) == NULL && error.code == 0);
    leave(d);
}

int main(void)
{
    xp_engine_init();
    RUN(test_refusals);
    RUN(test_death_is_seen);
    RUN(test_clean_exit);
    RUN(test_reach);
    RUN(test_who_leaves_may_still_read);
    RUN(test_slots_are_used_again);
    RUN(test_opens_are_counted);
    RUN(test_threads_hold_and_attach);
    return 0;
}
