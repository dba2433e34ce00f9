/* Freed memory that waits for its next allocation. */
#include "support.h"

#include <sys/stat.h>

#define SIZE 65536u

static xp_domain *d;

static void set_up(void)
{
    d = new_commons();
    EQUAL(xp_loop_start(), 0);
    EQUAL(xp_kept_nbytes(), 0);
}

static void tear_down(void)
{
    xp_trim();
    EQUAL(xp_kept_nbytes(), 0);
    leave(d);
    xp_loop_stop();
}

static char *new_memory(uint64_t nbytes, int *fd)
{
    *fd = memfd(nbytes, 0);
    char *base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    CHECK(base != MAP_FAILED);
    memset(base, 7, nbytes);
    return base;
}

static void keep_one(uint64_t nbytes)
{
    int fd;
    char *base = new_memory(nbytes, &fd);
    CHECK(xp_keep(base, nbytes, fd, XP_RELAXED(&xp_forks_begun), false));
}

static void free_it(char *base, uint64_t nbytes, int fd)
{
    munmap(base, nbytes);
    close(fd);
}

static void test_kept_and_taken(void)
{
    char *base;
    int fd;
    set_up();
    keep_one(SIZE);
    CHECK(!xp_take_kept(2 * SIZE, &base, &fd));
    EQUAL(xp_kept_nbytes(), SIZE);
    CHECK(xp_take_kept(SIZE, &base, &fd));
    for (uint64_t i = 0; i < SIZE; i++)
        CHECK(base[i] == 0);
    CHECK(!xp_take_kept(SIZE, &base, &fd));
    free_it(base, SIZE, fd);
    keep_one(SIZE);
    EQUAL(xp_trim(), SIZE);
    tear_down();
}

/* It comes back as it was, and only to its owner. */
static void test_owned(void)
{
    char *base;
    uint64_t nbytes, number, again;
    int fd, other;
    set_up();
    char *mine = new_memory(SIZE, &fd);
    CHECK((number = xp_keep(mine, SIZE, fd, XP_RELAXED(&xp_forks_begun), true)) != 0);
    EQUAL(xp_kept_nbytes(), SIZE);
    CHECK(!xp_take_kept(SIZE, &base, &other) && !xp_take_owned(number + 1, &base, &nbytes, &other));
    CHECK(xp_take_owned(number, &base, &nbytes, &other) && base == mine && nbytes == SIZE && other == fd);
    for (uint64_t i = 0; i < SIZE; i++)
        CHECK(mine[i] == 7);
    CHECK(!xp_take_owned(number, &base, &nbytes, &other));
    again = xp_keep(mine, SIZE, fd, XP_RELAXED(&xp_forks_begun), true);
    CHECK(again && again != number && !xp_take_owned(number, &base, &nbytes, &other));
    EQUAL(xp_trim(), SIZE);
    CHECK(!xp_take_owned(again, &base, &nbytes, &other));
    tear_down();
}

/* Of an import there is but the mapping. */
static void test_owned_without_a_descriptor(void)
{
    char *base;
    uint64_t nbytes, number;
    int fd, none;
    set_up();
    char *mine = new_memory(SIZE, &fd);
    close(fd);
    CHECK((number = xp_keep(mine, SIZE, -1, XP_RELAXED(&xp_forks_begun), true)) != 0);
    CHECK(xp_take_owned(number, &base, &nbytes, &none) && base == mine && nbytes == SIZE && none == -1 && base[0] == 7);
    CHECK((number = xp_keep(mine, SIZE, -1, XP_RELAXED(&xp_forks_begun), true)) != 0);
    EQUAL(xp_trim(), SIZE);
    CHECK(!xp_take_owned(number, &base, &nbytes, &none));
    tear_down();
}

static void test_bounds(void)
{
    char *base;
    int fd;
    set_up();
    for (int i = 0; i < 100; i++)
        keep_one(SIZE);
    EQUAL(xp_kept_nbytes(), 64 * SIZE);
    base = new_memory(SIZE, &fd);
    CHECK(!xp_keep(base, 1ull << 40, fd, XP_RELAXED(&xp_forks_begun), false));
    free_it(base, SIZE, fd);
    xp_loop_stop(); /* without it, nobody would give it back in time */
    EQUAL(xp_kept_nbytes(), 0);
    base = new_memory(SIZE, &fd);
    CHECK(!xp_keep(base, SIZE, fd, XP_RELAXED(&xp_forks_begun), false));
    free_it(base, SIZE, fd);
    tear_down();
}

static void test_the_warden_gives_it_back(void)
{
    uint64_t before = xp_kept_ns, start = xp_now();
    set_up();
    xp_kept_ns = 20000000;
    keep_one(SIZE);
    UNTIL(xp_kept_nbytes() == 0);
    CHECK(xp_now() - start >= 20000000);
    xp_kept_ns = before;
    tear_down();
}

static void test_what_existed_at_a_fork(void)
{
    int fd, status;
    char *base, *held;
    set_up();
    unsigned forks = XP_RELAXED(&xp_forks_begun);
    keep_one(SIZE);
    held = new_memory(SIZE, &fd);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(xp_kept_nbytes() == 0 && !xp_take_kept(SIZE, &base, &fd) ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(!xp_keep(held, SIZE, fd, forks, false));
    free_it(held, SIZE, fd);
    CHECK(!xp_take_kept(SIZE, &base, &fd));
    tear_down();
}

static void test_an_fd_that_somebody_closed(void)
{
    char *base;
    int fd, other;
    struct stat st;
    set_up();
    base = new_memory(SIZE, &fd);
    CHECK(xp_keep(base, SIZE, fd, XP_RELAXED(&xp_forks_begun), false));
    other = memfd(SIZE, 0);
    CHECK(dup2(other, fd) == fd);
    CHECK(!xp_take_kept(SIZE, &base, &other));
    CHECK(fstat(fd, &st) == 0); /* it is not ours to close */
    close(fd);
    tear_down();
}

int main(void)
{
    xp_engine_init();
    RUN(test_kept_and_taken);
    RUN(test_owned);
    RUN(test_owned_without_a_descriptor);
    RUN(test_bounds);
    RUN(test_the_warden_gives_it_back);
    RUN(test_what_existed_at_a_fork);
    RUN(test_an_fd_that_somebody_closed);
    return 0;
}
