/* Meeting an exporter, and what is refused. */
#include "support.h"

#include "../../../src/engine/exporter.h"

#include <sys/stat.h>

#define ALL (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static xp_table *head; /* of the child's table, which both map */
static xp_handle asked;

/* The child owns the commons, and has the table's descriptor under the same number as this process. */
static void serve(process *parent, xp_domain *d, uint32_t index)
{
    (void)index;
    head->commons_fd = d->fd;
    head->bell_fd = d->bell;
    tell(parent);
    while (hear(parent))
        ;
}

static void set_up(int seals)
{
    int table = memfd(XP_TABLE_SIZE, 0);
    head = mmap(NULL, XP_TABLE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, table, 0);
    CHECK(head != MAP_FAILED && fcntl(table, F_ADD_SEALS, seals) == 0);
    asked = (xp_handle){.pid_namespace = xp_pid_namespace(), .table_fd = (uint32_t)table};
}

static void name_exporter(const process *exporter, const xp_domain *d)
{
    struct stat file;
    CHECK(fstat(d->fd, &file) == 0);
    memcpy(head->magic, XP_TABLE_MAGIC, sizeof head->magic);
    memcpy(head->cookie, cookie, XP_COOKIE);
    head->version = XP_VERSION;
    head->commons_inode = file.st_ino;
    memcpy(asked.cookie, cookie, XP_COOKIE);
    asked.pid = (uint32_t)exporter->pid;
}

/* Meet the exporter. Returns the code of the refusal. */
static int refusal_of(const xp_handle *h, xp_refusal *why)
{
    xp_exporter_fds fds;
    xp_met met;
    *why = (xp_refusal){.code = XP_NOT_REFUSED};
    if (!xp_fetch_exporter_fds(h, &fds, why)) {
        CHECK(fds.table < 0 && fds.commons < 0 && fds.bell < 0 && fds.pidfd < 0);
    } else if (!xp_meet(h, &fds, &met, why)) {
        CHECK(fds.table >= 0 && fds.commons >= 0 && fds.bell >= 0 && fds.pidfd >= 0); /* they stay the caller's */
        xp_close_exporter_fds(&fds);
    } else {
        CHECK(memcmp(met.table, head, sizeof *head) == 0 && xp_hold(met.domain, 3));
        xp_leave(met.domain);
        xp_domain_unref(met.domain);
        munmap(met.table, XP_TABLE_SIZE);
        fds.commons = fds.bell = -1;
        xp_close_exporter_fds(&fds);
    }
    return why->code;
}

static void test_refusals(void)
{
    xp_refusal why;
    xp_handle h = asked;
    h.pid_namespace++;
    EQUAL(refusal_of(&h, &why), XP_REFUSED_OTHER_PIDS);
    h = asked;
    h.pid = (uint32_t)getpid();
    EQUAL(refusal_of(&h, &why), XP_REFUSED_PID_OURS);
    h.pid = INT32_MAX;
    EQUAL(refusal_of(&h, &why), XP_REFUSED_PID_UNUSED);
    h = asked;
    h.table_fd = 100000;
    EQUAL(refusal_of(&h, &why), XP_REFUSED_PID_REUSED);
    EQUAL(why.error, EBADF);
    h = asked;
    h.cookie[0]++;
    EQUAL(refusal_of(&h, &why), XP_REFUSED_FD_REUSED);
    head->version++;
    EQUAL(refusal_of(&asked, &why), XP_REFUSED_TABLE_VERSION);
    EQUAL(why.detail, XP_VERSION + 1);
    head->version--;
    head->commons_inode++;
    EQUAL(refusal_of(&asked, &why), XP_REFUSED_COMMONS_OTHER);
    head->commons_inode--;
    head->bell_fd += 100000;
    EQUAL(refusal_of(&asked, &why), XP_REFUSED_MET_ENDING);
    head->bell_fd -= 100000;
}

static void test_meeting(int seals, int expected)
{
    set_up(seals);
    xp_domain *d = new_commons();
    process exporter = start(serve, d, 0);
    CHECK(hear(&exporter));
    name_exporter(&exporter, d);
    leave(d); /* this process may join again, as another member */
    xp_refusal why;
    for (int i = 0; i < 3; i++)
        EQUAL(refusal_of(&asked, &why), expected);
    if (expected == XP_NOT_REFUSED)
        test_refusals();
    reap_process(&exporter, SIGKILL);
    EQUAL(refusal_of(&asked, &why), XP_REFUSED_PID_UNUSED);
    munmap(head, XP_TABLE_SIZE);
    close((int)asked.table_fd);
}

int main(void)
{
    xp_engine_init();
    test_meeting(ALL | 16, XP_NOT_REFUSED); /* 16: F_SEAL_FUTURE_WRITE */
    test_meeting(ALL, XP_REFUSED_TABLE_UNFIT);
    return 0;
}
