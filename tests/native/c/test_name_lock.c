/* The lock on a file with a path, in this process and in others. */
#include "../../../src/engine/name_lock.h"
#include "support.h"

#include <sys/stat.h>
#include <sys/syscall.h>

static char path[] = "/tmp/xpushare-name-lock-XXXXXX";

static int holder(int *pid)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    int held = xp_name_lock_holder(fd, 4, pid);
    close(fd);
    return held;
}

static int take(xp_name_lock *l) { return xp_name_lock_take(l, path, NULL, NULL, 4); }

static void test_one_holder(void)
{
    xp_name_lock mine, other;
    int pid = -1;
    EQUAL(holder(&pid), 0);
    EQUAL(take(&mine), 0);
    EQUAL(take(&other), EAGAIN);
    xp_name_lock_release(&other); /* it never had it */
    EQUAL(holder(&pid), 1);
    EQUAL(pid, getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC); /* as a program does that reads the file */
    CHECK(fd >= 0 && close(fd) == 0);
    EQUAL(take(&other), EAGAIN);
    xp_name_lock_release(&mine);
    xp_name_lock_release(&mine);
    EQUAL(holder(&pid), 0);
    EQUAL(take(&other), 0);
    xp_name_lock_release(&mine);
    EQUAL(holder(&pid), 1);
    xp_name_lock_release(&other);
}

static void test_another_file(void)
{
    xp_name_lock l;
    struct stat file, there;
    char link[64], moved[64];
    snprintf(link, sizeof link, "%s-link", path);
    snprintf(moved, sizeof moved, "%s-moved", path);
    CHECK(stat(path, &file) == 0 && symlink(path, link) == 0);
    EQUAL(xp_name_lock_take(&l, path, &file.st_dev, &file.st_ino, -1), 0);
    xp_name_lock_release(&l);
    EQUAL(xp_name_lock_take(&l, link, NULL, NULL, -1), ELOOP);
    EQUAL(xp_name_lock_take(&l, "/tmp", NULL, NULL, -1), EISDIR);
    EQUAL(xp_name_lock_take(&l, moved, NULL, NULL, -1), ENOENT);
    CHECK(unlink(link) == 0 && rename(path, moved) == 0);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && close(fd) == 0 && stat(path, &there) == 0 && there.st_ino != file.st_ino);
    EQUAL(xp_name_lock_take(&l, path, &file.st_dev, &file.st_ino, -1), ENOENT);
    EQUAL(take(&l), 0);
    CHECK(unlink(moved) == 0);
    xp_name_lock_release(&l);
}

static void test_closed_behind_our_back(void)
{
    xp_name_lock l;
    EQUAL(take(&l), 0);
    close(l.fd);
    int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EQUAL(other, l.fd);
    xp_name_lock_release(&l);
    CHECK(fcntl(other, F_GETFD) >= 0 && close(other) == 0);
}

/* A child that releases what it has of the lock, and ends when `go` has a byte. */
static pid_t child(bool bare, int go, xp_name_lock *l)
{
    pid_t pid = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0L) : fork();
    CHECK(pid >= 0);
    if (pid)
        return pid;
    char byte;
    bool good = bare || l->fd == -1;
    xp_name_lock_release(l); /* the parent's */
    if (read(go, &byte, 1) != 1)
        _exit(2);
    _exit(good ? 0 : 1);
}

static void with_a_child(bool bare)
{
    xp_name_lock mine, other;
    int go[2], status;
    EQUAL(take(&mine), 0);
    CHECK(pipe(go) == 0);
    pid_t pid = child(bare, go[0], &mine);
    EQUAL(take(&other), EAGAIN);
    xp_name_lock_release(&mine);
    EQUAL(take(&other), 0); /* although the child lives */
    xp_name_lock_release(&other);
    CHECK(write(go[1], "x", 1) == 1 && waitpid(pid, &status, 0) == pid && status == 0);
    EQUAL(take(&mine), 0);
    pid = child(bare, go[0], &mine);
    CHECK(write(go[1], "x", 1) == 1 && waitpid(pid, &status, 0) == pid && status == 0);
    EQUAL(take(&other), EAGAIN); /* the child's end frees nothing */
    xp_name_lock_release(&mine);
    close(go[0]);
    close(go[1]);
}

static void test_a_forked_child_has_it_not(void) { with_a_child(false); }
static void test_a_bare_clone_frees_nothing(void) { with_a_child(true); }

static void test_the_holder_dies(void)
{
    xp_name_lock l;
    int ready[2], status, pid;
    char byte;
    CHECK(pipe(ready) == 0);
    pid_t dying = fork();
    CHECK(dying >= 0);
    if (dying == 0) {
        CHECK(take(&l) == 0 && write(ready[1], "x", 1) == 1);
        pause();
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    EQUAL(take(&l), EAGAIN);
    EQUAL(holder(&pid), 1);
    EQUAL(pid, dying);
    CHECK(kill(dying, SIGKILL) == 0 && waitpid(dying, &status, 0) == dying);
    EQUAL(take(&l), 0);
    xp_name_lock_release(&l);
    close(ready[0]);
    close(ready[1]);
}

int main(void)
{
    xp_engine_init();
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    RUN(test_one_holder);
    RUN(test_another_file);
    RUN(test_closed_behind_our_back);
    RUN(test_a_forked_child_has_it_not);
    RUN(test_a_bare_clone_frees_nothing);
    RUN(test_the_holder_dies);
    CHECK(unlink(path) == 0);
    return 0;
}
