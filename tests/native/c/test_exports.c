/* Exports: reserved, published and ended, by several threads at once, and who may reach what has ended. */
#include "exporting.h"

static xp_domain *d;
static xp_exports *t;
static xp_key key;
static xp_template memory;
static int memory_fd;

static void set_up(void)
{
    d = new_commons();
    t = new_exports(d);
    xp_make_key(&key, "key", 3);
    memory_fd = memfd(BLOCK, F_SEAL_SHRINK | F_SEAL_GROW);
    memory = memory_template(t, memory_fd, test_names, 5000, 0);
}

static void tear_down(void)
{
    end_exports(t);
    close(memory_fd);
    leave(d);
}

static xp_export unreserved(uint64_t offset) { return (xp_export){.template = &memory, .offset = offset, .nbytes = 100}; }

static void publish(xp_export *e, xp_handle *h)
{
    xp_export_error error;
    if (!xp_export_reserve(t, &key, e, -1, 0, true, h, &error))
        fprintf(stderr, "reserving: %d, errno %d, entry %u\n", error.code, error.error, error.entry);
    EQUAL(error.code, XP_EXPORT_GOOD);
    EQUAL(error.entry, e->entry);
    xp_export_publish(t, e);
}

static void end(xp_export *e)
{
    EQUAL(xp_export_end(t, e, XP_REASON_FREED), XP_EXPORT_GOOD);
    CHECK(xp_export_release(t, e, NULL));
}

static int why(xp_export *e, bool block)
{
    xp_export_error error;
    xp_handle h;
    CHECK(!xp_export_reserve(t, &key, e, -1, 0, block, &h, &error));
    return error.code;
}

static void test_an_export(void)
{
    xp_handle first, second, read;
    xp_entry seen;
    uint32_t reason;
    set_up();
    xp_export e = unreserved(16), next = unreserved(32);
    publish(&e, &first);
    EQUAL(xp_read_handle(&key, &first, sizeof first, NULL, &read), XP_FLAWLESS);
    CHECK(first.offset == 16 && first.nbytes == 100 && first.object == memory.e.object);
    EQUAL(xp_read_entry(t->base, &first, &seen), XP_LIVE);
    CHECK(seen.nbytes == 5000 && seen.fds[0] == memory_fd && seen.fd_count == 1 && seen.since > 0);
    CHECK(xp_export_find(t, &first) == &e && t->live == 1 && t->used == 1);
    EQUAL(why(&e, true), XP_EXPORT_RESERVED_BEFORE);
    end(&e);
    EQUAL(xp_export_end(t, &e, XP_REASON_PUT), XP_EXPORT_OVER);
    CHECK(!xp_export_release(t, &e, NULL) && xp_export_find(t, &first) == NULL && t->live == 0);
    EQUAL(why(&e, true), XP_EXPORT_RESERVED_BEFORE); /* it never comes back */

    xp_export_error error;
    CHECK(xp_export_reserve(t, &key, &next, -1, 0, true, &second, &error));
    CHECK(second.entry == first.entry && second.generation == first.generation + 1);
    CHECK(memcmp(first.nonce, second.nonce, sizeof first.nonce) != 0);
    EQUAL(xp_read_entry(t->base, &second, &seen), XP_EXPIRED); /* it is not published yet */
    EQUAL(xp_entry_state(t->base, &first, &reason), XP_EXPIRED);
    EQUAL(reason, XP_REASON_FREED);
    xp_export_publish(t, &next);
    EQUAL(xp_read_entry(t->base, &second, &seen), XP_LIVE);
    EQUAL(xp_read_entry(t->base, &first, &seen), XP_EXPIRED); /* a stale handle never reaches a new export */
    CHECK(xp_export_find(t, &first) == NULL && xp_export_find(t, &second) == &next);
    second.seal[31] ^= 1;
    CHECK(xp_export_find(t, &second) == NULL);
    second.entry = XP_ENTRIES;
    CHECK(xp_export_find(t, &second) == NULL);
    end(&next);
    tear_down();
}

static void test_cancelled_and_refused(void)
{
    xp_handle h;
    xp_export_error error;
    set_up();
    xp_export e = unreserved(0);
    CHECK(xp_export_reserve(t, &key, &e, -1, 5, true, &h, &error));
    uint32_t entry = e.entry;
    xp_export_cancel(t, &e);
    CHECK(e.entry == XP_ENTRIES && e.generation == 0 && e.deadline == 0);
    publish(&e, &h);
    CHECK(h.entry == entry && h.generation == 2);
    xp_export other = unreserved(0);
    t->used = XP_ENTRIES;
    CHECK(!xp_export_reserve(t, &key, &other, -1, 0, true, &h, &error));
    CHECK(error.code == XP_EXPORT_TABLE_FULL && error.entry == XP_ENTRIES);
    t->used = 1;
    int fds[XP_ENTRY_FDS + 1] = {0};
    xp_template p;
    CHECK(!xp_template_fill(&p, t, &memory.e, (const char *)test_names, fds, XP_ENTRY_FDS + 1, "", 0, NULL));
    CHECK(!xp_template_fill(&p, t, &memory.e, (const char *)test_names, fds, 1, t->base, 129, NULL));
    CHECK(!xp_template_like(&p, t, &memory, 9, 64, "", 0)); /* it has a descriptor */
    end(&e);
    xp_leave(d);
    EQUAL(why(&other, true), XP_EXPORT_UNUSABLE);
    CHECK(xp_domain_wrong(d) != NULL);
    tear_down();
}

static void test_opens_and_deadlines(void)
{
    xp_handle h;
    xp_export_error error;
    uint64_t until = 99;
    set_up();
    xp_export e = unreserved(0), pickled = unreserved(0);
    CHECK(xp_export_reserve(t, &key, &e, 3, 77, true, &h, &error));
    xp_export_publish(t, &e);
    EQUAL(h.flags, XP_ENTRY_COUNTED);
    EQUAL(xp_opens_left(d, e.entry), 3);
    EQUAL(xp_export_allow_open(t, &h, NULL), XP_EXPORT_GOOD);
    EQUAL(xp_opens_left(d, e.entry), 4);
    CHECK(xp_overdue(t->base, &h, 0, false) && e.deadline == 77);
    EQUAL(xp_export_set_deadline(t, &e, 0), XP_EXPORT_GOOD);
    CHECK(!xp_overdue(t->base, &h, 0, false));
    end(&e);
    EQUAL(xp_export_allow_open(t, &h, NULL), XP_EXPORT_OVER);
    EQUAL(xp_export_set_deadline(t, &e, 5), XP_EXPORT_OVER);
    pickled.flags = XP_ENTRY_PICKLED;
    CHECK(xp_export_reserve(t, &key, &pickled, -1, 1, true, &h, &error));
    CHECK(pickled.entry == e.entry && xp_opens_left(d, e.entry) == 0); /* nothing is left of the export before */
    xp_export_publish(t, &pickled);
    EQUAL(xp_export_allow_open(t, &h, &until), XP_EXPORT_GOOD);
    CHECK(xp_opens_left(d, e.entry) == 1 && xp_renewed(d, e.entry) == 99);
    end(&pickled);
    tear_down();
}

static void hold_entry(process *parent, xp_domain *mine, uint32_t entry)
{
    CHECK(xp_hold(mine, entry));
    tell(parent);
    while (hear(parent))
        ;
}

static void test_an_entry_with_a_holder_is_not_reused(void)
{
    xp_handle h;
    set_up();
    xp_export e = unreserved(0), other = unreserved(0), third = unreserved(0);
    publish(&e, &h);
    end(&e);
    process importer = start(hold_entry, d, 0);
    CHECK(hear(&importer));
    EQUAL(why(&other, false), XP_EXPORT_WOULD_BLOCK);
    publish(&other, &h);
    EQUAL(h.entry, 1);
    reap_process(&importer, SIGKILL);
    UNTIL(!xp_reached(d, 0));
    publish(&third, &h);
    EQUAL(h.entry, 0);
    end(&other);
    end(&third);
    tear_down();
}

static void test_foreign_memory_lingers(void)
{
    xp_handle h;
    set_up();
    xp_export e = unreserved(0), next = unreserved(0);
    e.foreign = true;
    publish(&e, &h);
    process importer = start(hold_entry, d, 0);
    CHECK(hear(&importer));
    EQUAL(xp_export_end(t, &e, XP_REASON_PUT), XP_EXPORT_LINGERS);
    EQUAL(xp_export_end(t, &e, XP_REASON_PUT), XP_EXPORT_OVER);
    CHECK(t->exports[0] == &e && xp_export_find(t, &h) == NULL);
    reap_process(&importer, SIGKILL);
    CHECK(xp_export_release(t, &e, NULL) && !xp_export_release(t, &e, NULL) && t->exports[0] == NULL);
    UNTIL(!xp_reached(d, 0));
    publish(&next, &h);
    EQUAL(h.entry, 0);
    end(&next);
    tear_down();
}

static void use_entry(process *parent, xp_domain *mine, uint32_t entry)
{
    CHECK(xp_hold(mine, entry) && xp_use(mine, entry));
    xp_drop(mine, entry); /* closed, but still mapped */
    tell(parent);
    CHECK(hear(parent));
    xp_unuse(mine, entry);
    tell(parent);
    while (hear(parent))
        ;
}

static void own_entry(process *parent, xp_domain *mine, uint32_t entry)
{
    CHECK(xp_hold(mine, entry));
    xp_own(mine, entry);
    xp_drop(mine, entry);
    tell(parent);
    while (hear(parent))
        ;
}

static void test_exposure(void)
{
    xp_handle h;
    xp_exposure x, spoilt;
    set_up();
    xp_exposure_begin(&x);
    xp_export e = unreserved(0), next = unreserved(0), third = unreserved(0);
    publish(&e, &h);
    EQUAL(xp_exposure_state(&x), XP_EXPOSED_NOT);
    process importer = start(use_entry, d, 0);
    xp_exposure_end(&x); /* a fork spoils what was there before it */
    xp_exposure_begin(&x);
    CHECK(hear(&importer));
    EQUAL(xp_export_end(t, &e, XP_REASON_FREED), XP_EXPORT_GOOD);
    CHECK(xp_export_release(t, &e, &x));
    EQUAL(xp_exposure_state(&x), XP_EXPOSED);
    publish(&next, &h);
    EQUAL(h.entry, 1); /* the exposure has the first */
    tell(&importer);
    CHECK(hear(&importer));
    EQUAL(xp_exposure_state(&x), XP_EXPOSED_NOT);
    publish(&third, &h);
    EQUAL(h.entry, 0);
    reap_process(&importer, SIGKILL);
    process owner = start(own_entry, d, 0);
    CHECK(hear(&owner));
    EQUAL(xp_exposure_state(&x), XP_EXPOSED_FOREVER); /* the fork */
    xp_exposure_begin(&spoilt);
    EQUAL(xp_export_end(t, &third, XP_REASON_FREED), XP_EXPORT_GOOD);
    CHECK(xp_export_release(t, &third, &spoilt));
    EQUAL(xp_exposure_state(&spoilt), XP_EXPOSED_FOREVER); /* it may have passed the memory on */
    reap_process(&owner, SIGKILL);
    end(&next);
    xp_exposure_end(&x);
    xp_exposure_end(&spoilt);
    tear_down();
}

/* --- several threads ---------------------------------------------------------------------------------------------- */

#define ROUNDS 3000
static xp_handle newest[2]; /* of each publisher, under the mutex */
static pthread_mutex_t newest_mu = PTHREAD_MUTEX_INITIALIZER;
static xp_export published[2][ROUNDS]; /* a look-up may find one that ends meanwhile */
static int publishers;

static void *publish_and_end(void *arg)
{
    xp_handle *mine = &newest[(uintptr_t)arg], h;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        xp_export *e = &published[(uintptr_t)arg][i];
        *e = unreserved(i % 1000);
        publish(e, &h);
        CHECK(xp_export_find(t, &h) == e);
        pthread_mutex_lock(&newest_mu);
        *mine = h;
        pthread_mutex_unlock(&newest_mu);
        EQUAL(xp_export_allow_open(t, &h, NULL), XP_EXPORT_GOOD);
        EQUAL(xp_export_set_deadline(t, e, 0), XP_EXPORT_GOOD);
        end(e);
    }
    __atomic_sub_fetch(&publishers, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* An importer: what it reads is either the whole entry of its handle, or nothing. */
static void *look_up(void *arg)
{
    (void)arg;
    xp_export *found[4];
    xp_entry seen;
    while (XP_LOAD(&publishers)) {
        for (int i = 0; i < 2; i++) {
            pthread_mutex_lock(&newest_mu);
            xp_handle h = newest[i];
            pthread_mutex_unlock(&newest_mu);
            int state = xp_read_entry(t->base, &h, &seen);
            CHECK(state == XP_EXPIRED || state == XP_LIVE || (state == XP_NO_ENTRY && h.generation == 0));
            CHECK(xp_exports_list(t, found, 4) <= 2);
        }
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[3];
    set_up();
    memset(newest, 0, sizeof newest);
    XP_STORE(&publishers, 2);
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, i < 2 ? publish_and_end : look_up, (void *)i) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(pthread_join(threads[2], NULL) == 0);
    CHECK(t->live == 0 && t->used <= 2 && t->generation == 2 * ROUNDS && t->count == t->used);
    tear_down();
}

static void *race(void *arg)
{
    xp_export_error error;
    xp_handle h;
    bool won = xp_export_reserve(t, &key, arg, -1, 0, true, &h, &error);
    CHECK(won || error.code == XP_EXPORT_RESERVED_BEFORE);
    return won ? arg : NULL;
}

static void test_one_of_two_threads_reserves(void)
{
    set_up();
    for (int i = 0; i < 100; i++) {
        pthread_t threads[2];
        void *won[2];
        xp_export e = unreserved(0);
        for (int k = 0; k < 2; k++)
            CHECK(pthread_create(&threads[k], NULL, race, &e) == 0);
        for (int k = 0; k < 2; k++)
            CHECK(pthread_join(threads[k], &won[k]) == 0);
        CHECK((won[0] == NULL) != (won[1] == NULL));
        xp_export_cancel(t, &e);
    }
    EQUAL(t->used, 1);
    tear_down();
}

/* --- a fork ------------------------------------------------------------------------------------------------------- */

static void *list_always(void *arg)
{
    xp_export *found[4];
    while (XP_LOAD((int *)arg))
        xp_exports_list(t, found, 4);
    return NULL;
}

/* The child of a process whose other thread had the lock at most forks: it can look, and changes nothing. */
static void test_a_forked_child(void)
{
    pthread_t thread;
    int going = 1, status;
    xp_handle h;
    xp_entry seen;
    xp_export_error error;
    set_up();
    xp_export e = unreserved(0), other = unreserved(0);
    publish(&e, &h);
    CHECK(pthread_create(&thread, NULL, list_always, &going) == 0);
    for (int i = 0; i < 50; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(20);
            xp_handle none;
            bool good = !xp_export_reserve(t, &key, &other, -1, 0, true, &none, &error) &&
                        error.code == XP_EXPORT_UNUSABLE &&
                        xp_export_allow_open(t, &h, NULL) == XP_EXPORT_UNUSABLE &&
                        xp_export_set_deadline(t, &e, 1) == XP_EXPORT_UNUSABLE &&
                        xp_export_end(t, &e, XP_REASON_PUT) == XP_EXPORT_GOOD && xp_export_release(t, &e, NULL);
            _exit(!good);
        }
        EQUAL(waitpid(pid, &status, 0), pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        EQUAL(xp_read_entry(t->base, &h, &seen), XP_LIVE);
    }
    XP_STORE(&going, 0);
    pthread_join(thread, NULL);
    CHECK(xp_export_find(t, &h) == &e && !xp_overdue(t->base, &h, 0, false));
    end(&e);
    tear_down();
}

int main(void)
{
    xp_engine_init();
    RUN(test_an_export);
    RUN(test_cancelled_and_refused);
    RUN(test_opens_and_deadlines);
    RUN(test_an_entry_with_a_holder_is_not_reused);
    RUN(test_foreign_memory_lingers);
    RUN(test_exposure);
    RUN(test_threads);
    RUN(test_one_of_two_threads_reserves);
    RUN(test_a_forked_child);
    return 0;
}
