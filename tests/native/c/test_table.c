/* Entries of a hostile peer's table, and the files it gives. */
#include "support.h"
#include "../../../src/engine/exporter.h"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4
#endif

static char *table;

static xp_entry *entry(uint32_t i) { return (xp_entry *)(table + XP_TABLE_HEADER) + i; }

static void set_up(void)
{
    table = mmap(NULL, XP_TABLE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(table != MAP_FAILED);
}

static const xp_entry sound = {.generation = 9, .kind = 1, .nonce = "nonce", .object = 3, .nbytes = 100,
                               .exposed_nbytes = 4096, .fd_count = 1, .payload_nbytes = 4};
static const xp_handle fitting = {.kind = 1, .generation = 9, .entry = 2, .nonce = "nonce", .object = 3,
                                  .offset = 60, .nbytes = 40};

static int read_with(void (*change)(xp_entry *e, xp_handle *h))
{
    xp_entry copy, changed = sound;
    xp_handle h = fitting;
    change(&changed, &h);
    *entry(2) = changed;
    return xp_read_entry(table, &h, &copy);
}

#define CHANGES(X)                                                                                                    \
    X(nothing, (void)e, XP_LIVE)                                                                                      \
    X(no_entry, h->entry = XP_ENTRIES, XP_NO_ENTRY)                                                                   \
    X(far_entry, h->entry = UINT32_MAX, XP_NO_ENTRY)                                                                  \
    X(no_generation, h->generation = e->generation = 0, XP_NO_ENTRY)                                                  \
    X(later_generation, e->generation = 10, XP_EXPIRED)                                                               \
    X(kind, e->kind = 2, XP_MISFIT)                                                                                   \
    X(wide_kind, e->kind = 0x10001, XP_MISFIT)                                                                        \
    X(object, e->object = 4, XP_MISFIT)                                                                               \
    X(nonce, e->nonce[15] = 1, XP_MISFIT)                                                                             \
    X(flags, e->flags = XP_ENTRY_READ_ONLY, XP_MISFIT)                                                                \
    X(unknown_flags, h->flags = 1u << 31, XP_MISFIT)                                                                  \
    X(too_long, h->nbytes = 41, XP_MISFIT)                                                                            \
    X(wraps, h->nbytes = UINT64_MAX - 10, XP_MISFIT)                                                                  \
    X(far_offset, h->offset = UINT64_MAX, XP_MISFIT)                                                                  \
    X(exposed, e->exposed_nbytes = 99, XP_MISFIT)                                                                     \
    X(payload, e->payload_nbytes = 129, XP_MISFIT)                                                                    \
    X(fd_count, e->fd_count = 9, XP_MISFIT)                                                                           \
    X(on_demand, (e->fd_count = 9, e->flags = XP_ENTRY_ON_DEMAND), XP_LIVE)

#define DEFINE(name, change, expected) \
    static void name(xp_entry *e, xp_handle *h) { (void)e, (void)h, change; }
CHANGES(DEFINE)

static void test_an_entry_fits_or_not(void)
{
    set_up();
#define EXPECT(name, change, expected) EQUAL(read_with(name), expected);
    CHANGES(EXPECT)
    munmap(table, XP_TABLE_SIZE);
}

static void test_why_an_entry_ended(void)
{
    set_up();
    uint32_t reason;
    *entry(2) = sound;
    xp_withdraw(entry(2), XP_REASON_FREED);
    EQUAL(xp_entry_state(table, &fitting, &reason), XP_EXPIRED);
    EQUAL(reason, XP_REASON_FREED);
    entry(2)->retired = 10; /* another's end */
    EQUAL(xp_entry_state(table, &fitting, &reason), XP_EXPIRED);
    EQUAL(reason, XP_REASON_PUT); /* the usual one */
    munmap(table, XP_TABLE_SIZE);
}

static void test_deadlines(void)
{
    set_up();
    uint64_t *deadline = (uint64_t *)(table + XP_TABLE_DEADLINES) + 2, now = xp_now();
    xp_handle h = fitting, pickled = fitting, nowhere = fitting;
    pickled.flags = XP_ENTRY_PICKLED;
    nowhere.entry = UINT32_MAX;
    CHECK(!xp_overdue(table, &h, 0, false) && !xp_overdue(table, &h, 1, false) && !xp_overdue(table, &nowhere, 0, false) &&
          !xp_overdue(table, &pickled, 0, true)); /* there is none */
    *deadline = now + 60000000000u;
    CHECK(!xp_overdue(table, &h, 0, false) && !xp_overdue(table, &pickled, 0, false));
    *deadline = now;
    CHECK(xp_overdue(table, &h, 0, false) && xp_overdue(table, &pickled, 0, false) && !xp_overdue(table, &nowhere, 0, false));
    CHECK(!xp_overdue(table, &pickled, UINT64_MAX, false) && xp_overdue(table, &pickled, now - 1, false)); /* somebody passed it on */
    CHECK(xp_overdue(table, &pickled, UINT64_MAX, true)); /* its object has died, and each pickle was opened */
    CHECK(xp_overdue(table, &h, UINT64_MAX, false)); /* a ttl is the exporter's alone */
    munmap(table, XP_TABLE_SIZE);
}

static void refused(int fd, xp_memfd wanted, const char *why)
{
    xp_error error;
    CHECK(!xp_check_memfd(fd, &wanted, &error) && xp_map_memfd(fd, &wanted, true, NULL, &error) == NULL);
    if (strstr(error.what, why) == NULL)
        fprintf(stderr, "%s\n", error.what);
    CHECK(error.code == 0 && strstr(error.what, why) != NULL);
    close(fd);
}

static void test_files(void)
{
    xp_memfd wanted = {.nbytes = 8192};
    xp_error error;
    int fd = memfd(8192, F_SEAL_SHRINK);
    CHECK(xp_check_memfd(fd, &wanted, &error));
    char *mapped = xp_map_memfd(fd, &wanted, false, NULL, &error);
    CHECK(mapped != NULL && mapped[8191] == 0);
    munmap(mapped, 8192);
    close(fd);
    refused(memfd(8192, 0), wanted, "F_SEAL_SHRINK");
    refused(memfd(8191, F_SEAL_SHRINK), wanted, "smaller");
    refused(memfd(8192, F_SEAL_SHRINK), (xp_memfd){.nbytes = 0}, "smaller");
    refused(memfd(8192, F_SEAL_SHRINK), (xp_memfd){.nbytes = UINT64_MAX}, "smaller");
    refused(memfd(8193, F_SEAL_SHRINK), (xp_memfd){.nbytes = 8192, .exact = true}, "size");
    refused(memfd(8192, F_SEAL_SHRINK), (xp_memfd){.nbytes = 8192, .inode = 1}, "another file");
    refused(memfd(8192, F_SEAL_SHRINK), (xp_memfd){.nbytes = 8192, .seals = F_SEAL_FUTURE_WRITE}, "FUTURE_WRITE");
    refused(eventfd(0, 0), wanted, "not a memfd");
    CHECK(!xp_check_memfd(-1, &wanted, &error) && error.code == EBADF);
    fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd < 0) { /* a kernel without huge pages */
        CHECK(errno == ENOENT || errno == EINVAL || errno == ENOSYS || errno == EPERM || errno == ENODEV);
        return;
    }
    CHECK(ftruncate(fd, 1 << 30) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    refused(fd, wanted, "ordinary pages"); /* a hole in it is a SIGBUS */
}

static xp_refusal_code fds_of(const xp_exporter *x, const xp_entry *e, int *fds)
{
    xp_refusal why;
    return xp_fetch_fds(x, &fitting, e, fds, &why) ? XP_NOT_REFUSED : why.code;
}

static xp_refusal_code mapping_of(const xp_exporter *x, const xp_entry *e)
{
    xp_refusal why;
    char *mapped = xp_fetch_mapping(x, &fitting, e, &why);
    if (mapped)
        munmap(mapped, e->exposed_nbytes);
    return mapped ? XP_NOT_REFUSED : why.code;
}

static void test_fetching_from_another_process(void)
{
    set_up();
    int fd = memfd(8192, F_SEAL_SHRINK), fds[XP_ENTRY_FDS];
    xp_exporter x = {.table = table, .pidfd = xp_pidfd_open(getpid())};
    CHECK(x.pidfd >= 0);
    xp_entry e = sound, copy;
    xp_refusal why;
    e.fds[0] = fd;
    *entry(2) = e;
    CHECK(xp_find_entry(&x, &fitting, &copy, &why) && xp_entry_stands(&x, &fitting, &why));
    CHECK(xp_exporter_lives(&x, &why));
    EQUAL(fds_of(&x, &copy, fds), XP_NOT_REFUSED);
    close(fds[0]);
    EQUAL(mapping_of(&x, &copy), XP_NOT_REFUSED);
    copy.inode = 1;
    EQUAL(fds_of(&x, &copy, fds), XP_REFUSED_FD_OTHER);
    EQUAL(mapping_of(&x, &copy), XP_REFUSED_MEMORY_UNFIT);
    CHECK(!xp_fd_belongs(&x, &fitting, &copy, fd, &why) && why.code == XP_REFUSED_FD_OTHER);
    CHECK(!xp_fd_belongs(&x, &fitting, &copy, -1, &why) && why.code == XP_REFUSED_OBJECT_UNREAD && why.error == EBADF);
    CHECK(xp_map_fetched(&copy, -1, &why) == NULL && why.code == XP_REFUSED_MEMORY_FAILED && why.error == EBADF);
    EQUAL(why.detail, copy.exposed_nbytes);
    copy.inode = 0;
    copy.exposed_nbytes = 8193;
    EQUAL(mapping_of(&x, &copy), XP_REFUSED_MEMORY_UNFIT);
    copy.exposed_nbytes = 4096;
    XP_STORE(&entry(2)->retired, fitting.generation);
    XP_STORE(&entry(2)->reason, XP_REASON_FREED);
    XP_STORE(&entry(2)->generation, 0); /* withdrawn meanwhile */
    EQUAL(fds_of(&x, &copy, fds), XP_REFUSED_ENTRY_ENDED);
    EQUAL(mapping_of(&x, &copy), XP_REFUSED_ENTRY_ENDED);
    CHECK(!xp_find_entry(&x, &fitting, &e, &why) && why.code == XP_REFUSED_ENTRY_ENDED);
    EQUAL(why.detail, XP_REASON_FREED);
    copy.fds[0] = -1;
    EQUAL(fds_of(&x, &copy, fds), XP_REFUSED_FD_FREED);
    EQUAL(mapping_of(&x, &copy), XP_REFUSED_FD_FREED);
    close(x.pidfd);
    close(fd);
    munmap(table, XP_TABLE_SIZE);
}

/* A peer that changes its entry for ever: what was taken for sound is sound, in the copy. */
static void test_an_entry_that_changes(void)
{
    set_up();
    *entry(2) = sound;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        volatile xp_entry *e = entry(2);
        for (;;) {
            e->nbytes = UINT64_MAX;
            e->fd_count = UINT32_MAX;
            e->payload_nbytes = UINT32_MAX;
            e->payload_nbytes = 4;
            e->fd_count = 1;
            e->nbytes = 100;
        }
    }
    unsigned taken = 0, refused_ones = 0;
    uint64_t end = xp_now() + 20000000000u;
    while ((taken < 1000 || refused_ones < 1000) && xp_now() < end) {
        xp_entry copy;
        if (xp_read_entry(table, &fitting, &copy) == XP_LIVE) {
            CHECK(copy.nbytes == 100 && copy.fd_count == 1 && copy.payload_nbytes == 4);
            taken++;
        } else {
            refused_ones++;
        }
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK(taken >= 1000 && refused_ones >= 1000);
    munmap(table, XP_TABLE_SIZE);
}

int main(void)
{
    xp_engine_init();
    RUN(test_an_entry_fits_or_not);
    RUN(test_why_an_entry_ended);
    RUN(test_deadlines);
    RUN(test_files);
    RUN(test_fetching_from_another_process);
    RUN(test_an_entry_that_changes);
    return 0;
}
