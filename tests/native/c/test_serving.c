/* The socket: what is asked is answered, whatever is asked. */
#include "support.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

static xp_domain *d;
static char *table;
static int table_fd;

static xp_entry *entry(uint32_t i) { return (xp_entry *)(table + XP_TABLE_HEADER) + i; }

static int make(int *fd, uint64_t object, int64_t a, uint64_t b)
{
    CHECK(a == -1 && b == 2);
    *fd = eventfd((unsigned)object, EFD_CLOEXEC);
    return *fd < 0;
}

static void set_up(void)
{
    xp_error error;
    d = new_commons();
    table_fd = memfd(XP_TABLE_SIZE, F_SEAL_SHRINK);
    table = mmap(NULL, XP_TABLE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd, 0);
    CHECK(table != MAP_FAILED);
    memcpy(((xp_table *)table)->cookie, cookie, XP_COOKIE);
    for (uint32_t i = 0; i < 3; i++) {
        entry(i)->nonce[0] = (uint8_t)(10 + i);
        entry(i)->fd_count = 1;
        entry(i)->fds[0] = table_fd;
    }
    entry(1)->flags = XP_ENTRY_ON_DEMAND;
    xp_offer *offer = calloc(1, sizeof *offer + 300 * sizeof(uint64_t));
    CHECK(offer != NULL);
    *offer = (xp_offer){.entry = 1, .count = 300, .generation = 101, .make = make, .a = -1, .b = 2};
    xp_make_offer(offer);
    for (uint32_t i = 0; i < 3; i++)
        XP_STORE(&entry(i)->generation, 100 + i);
    CHECK(xp_serve((xp_table *)table, table_fd, d, NULL, &error));
}

static void tear_down(void)
{
    xp_loop_stop();
    for (uint32_t i = 0; i < 3; i++)
        xp_withdraw(entry(i), XP_REASON_PUT);
    munmap(table, XP_TABLE_SIZE);
    close(table_fd);
    leave(d);
}

/* A connection. The exporter ends it after a second, however busy this machine is; then there is a new one. */
typedef struct {
    int fd;
    uint64_t since;
} line;

static int connected(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int at = 1 + sprintf(name.sun_path + 1, "xpushare/");
    for (unsigned i = 0; i < XP_COOKIE; i++)
        at += sprintf(name.sun_path + at, "%02x", cookie[i]);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(connect(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)at)) == 0);
    return fd;
}

static line call(void)
{
    uint64_t since = xp_now();
    return (line){connected(), since};
}

/* One more entry of a request, whose size is returned. */
static size_t want(xp_request *q, uint32_t op, uint32_t count, uint32_t i, uint32_t first)
{
    xp_handle h = {.entry = i, .generation = 100 + i, .nonce = {(uint8_t)(10 + i)}};
    xp_write_wanted(&q->wanted[count], &h, first);
    return xp_write_request(q, op, cookie, count + 1);
}

/* How much the reply answers; its fds are closed, but for the first where it is asked for. */
static uint32_t ask_all(line *l, const void *packet, size_t size, uint32_t asked, xp_reply *r, int *kept)
{
    char data[sizeof(xp_reply) + 1];
    char bytes[CMSG_SPACE(XP_FDS_AT_ONCE * sizeof(int))];
    struct iovec part = {data, sizeof data};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = bytes, .msg_controllen = sizeof bytes};
    ssize_t n;
    while (send(l->fd, packet, size, MSG_NOSIGNAL) != (ssize_t)size || (n = recvmsg(l->fd, &msg, MSG_CMSG_CLOEXEC)) <= 0) {
        CHECK(xp_now() - l->since >= 1000000000u);
        close(l->fd);
        *l = call();
    }
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    uint32_t got = c ? (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
    for (uint32_t i = 0; i < got; i++) {
        int each;
        memcpy(&each, CMSG_DATA(c) + i * sizeof each, sizeof each);
        if (i == 0 && kept)
            *kept = each;
        else
            close(each);
    }
    uint32_t given;
    EQUAL(xp_read_reply(data, (size_t)n, asked, got, r, &given), XP_REPLY_GOOD);
    return given;
}

/* The same for one entry: its status. */
static uint32_t ask(line *l, const void *packet, size_t size, uint32_t *count, uint32_t *total, int *kept)
{
    xp_reply r;
    EQUAL(ask_all(l, packet, size, 1, &r, kept), 1);
    *count = r.given[0].count;
    *total = r.given[0].total;
    return r.given[0].status;
}

static uint32_t asked(uint32_t op, uint32_t i, uint32_t first, uint32_t *count)
{
    line l = call();
    uint32_t total;
    xp_request q;
    uint32_t status = ask(&l, &q, want(&q, op, 0, i, first), count, &total, NULL);
    close(l.fd);
    return status;
}

static void test_requests(void)
{
    uint32_t count, total;
    int kept = -1;
    line l;
    set_up();
    EQUAL(asked(XP_OP_HELLO, 0, 0, &count), XP_STATUS_OK);
    EQUAL(count, 4);
    l = call();
    xp_request q;
    size_t size = want(&q, XP_OP_FDS, 0, 0, 0);
    EQUAL(ask(&l, &q, size, &count, &total, &kept), XP_STATUS_OK);
    CHECK(count == 1 && total == 1 && kept >= 0);
    close(kept);
    EQUAL(ask(&l, &q, size - 1, &count, &total, NULL), XP_STATUS_MALFORMED); /* the connection goes on */
    EQUAL(ask(&l, &q, offsetof(xp_request, wanted), &count, &total, NULL), XP_STATUS_MALFORMED);
    EQUAL(ask(&l, "hello", 5, &count, &total, NULL), XP_STATUS_MALFORMED);
    q.wanted[0].nonce[15] ^= 1;
    EQUAL(ask(&l, &q, size, &count, &total, NULL), XP_STATUS_NOT_LIVE);
    EQUAL(ask(&l, &q, want(&q, XP_OP_FDS, 0, XP_ENTRIES, 0), &count, &total, NULL), XP_STATUS_NOT_LIVE);
    EQUAL(ask(&l, &q, want(&q, 3, 0, 0, 0), &count, &total, NULL), XP_STATUS_MALFORMED);
    want(&q, XP_OP_HELLO, 0, 0, 0);
    EQUAL(ask(&l, &q, want(&q, XP_OP_HELLO, 1, 0, 0), &count, &total, NULL), XP_STATUS_MALFORMED);
    close(l.fd);
    EQUAL(asked(XP_OP_FDS, 0, UINT32_MAX, &count), XP_STATUS_MALFORMED);
    xp_withdraw(entry(0), XP_REASON_PUT);
    EQUAL(asked(XP_OP_FDS, 0, 0, &count), XP_STATUS_NOT_LIVE);
    xp_error error;
    CHECK(xp_serve((xp_table *)table, table_fd, d, NULL, &error)); /* it does */
    xp_table other = *(xp_table *)table;
    CHECK(!xp_serve(&other, table_fd, d, NULL, &error) && error.code == EALREADY);
    tear_down();
}

static void test_several_at_once(void)
{
    static xp_request q;
    static char packet[sizeof q + sizeof *q.wanted];
    xp_reply r;
    set_up();
    line l = call();
    want(&q, XP_OP_FDS, 0, 0, 0);
    want(&q, XP_OP_FDS, 1, XP_ENTRIES, 0);
    want(&q, XP_OP_FDS, 2, 0, 1);
    want(&q, XP_OP_FDS, 3, 1, 290);
    size_t size = want(&q, XP_OP_FDS, 4, 2, 0);
    q.wanted[4].generation++;
    static const xp_given expected[] = {{XP_STATUS_OK, 1, 1}, {XP_STATUS_NOT_LIVE, 0, 0}, {XP_STATUS_MALFORMED, 0, 1},
                                        {XP_STATUS_OK, 10, 300}, {XP_STATUS_NOT_LIVE, 0, 0}};
    uint32_t given = ask_all(&l, &q, size, 5, &r, NULL);
    CHECK(given == 5 || given == 4); /* fds took long to make */
    EQUAL(memcmp(r.given, expected, given * sizeof *expected), 0);
    for (uint32_t i = 0; i < XP_FDS_AT_ONCE; i++) /* a packet is full */
        size = want(&q, XP_OP_FDS, i, 0, 0);
    EQUAL(ask_all(&l, &q, size, XP_FDS_AT_ONCE, &r, NULL), XP_FDS_AT_ONCE);
    memcpy(packet, &q, size);
    EQUAL(ask_all(&l, packet, size + sizeof *q.wanted, 1, &r, NULL), 1); /* one too many */
    EQUAL(r.given[0].status, XP_STATUS_MALFORMED);
    want(&q, XP_OP_FDS, 0, 1, 60); /* 240 of them: those that are left do not fit */
    want(&q, XP_OP_FDS, 1, 1, 0);
    size = want(&q, XP_OP_FDS, 2, 0, 0);
    given = ask_all(&l, &q, size, 3, &r, NULL);
    CHECK(given == 1 || (given == 2 && r.given[1].count == 13));
    CHECK(r.given[0].count == 240 && r.given[0].total == 300);
    entry(0)->fds[0] = 1 << 20; /* nobody's */
    want(&q, XP_OP_FDS, 0, 0, 0);
    EQUAL(ask_all(&l, &q, want(&q, XP_OP_FDS, 1, XP_ENTRIES, 0), 2, &r, NULL), 2);
    CHECK(r.given[0].status == XP_STATUS_DRIVER_ERROR && r.given[1].status == XP_STATUS_NOT_LIVE);
    close(l.fd);
    tear_down();
}

static void test_fds_on_demand(void)
{
    uint32_t count;
    set_up();
    EQUAL(asked(XP_OP_FDS, 1, 0, &count), XP_STATUS_OK);
    EQUAL(count, XP_FDS_AT_ONCE);
    EQUAL(asked(XP_OP_FDS, 1, XP_FDS_AT_ONCE, &count), XP_STATUS_OK);
    EQUAL(count, 300 - XP_FDS_AT_ONCE);
    EQUAL(asked(XP_OP_FDS, 1, 300, &count), XP_STATUS_MALFORMED);
    xp_withdraw(entry(1), XP_REASON_FREED);
    EQUAL(entry(1)->retired, 101);
    EQUAL(entry(1)->reason, XP_REASON_FREED);
    EQUAL(asked(XP_OP_FDS, 1, 0, &count), XP_STATUS_NOT_LIVE);
    tear_down();
}

static void test_replies(void)
{
    const size_t head = offsetof(xp_reply, given), one = head + sizeof(xp_given), two = one + sizeof(xp_given);
    xp_reply r = {.magic = {'X', 'P', 'S', 'R'}, .given = {{XP_STATUS_OK, 2, 2}, {XP_STATUS_OK, 1, 3}}}, got;
    uint32_t given;
    EQUAL(xp_read_reply(&r, one, 1, 2, &got, &given), XP_REPLY_GOOD);
    CHECK(given == 1 && got.given[0].count == 2);
    EQUAL(xp_read_reply(&r, two, 3, 3, &got, &given), XP_REPLY_GOOD); /* fewer than were asked for */
    CHECK(given == 2 && got.given[1].total == 3);
    EQUAL(xp_read_reply(&r, two, 1, 3, &got, &given), XP_REPLY_NONSENSE); /* more than were asked for */
    EQUAL(xp_read_reply(&r, two, 2, 2, &got, &given), XP_REPLY_FDS_LOST);
    EQUAL(xp_read_reply(&r, two, 2, 4, &got, &given), XP_REPLY_NONSENSE);
    EQUAL(xp_read_reply(&r, two - 1, 2, 3, &got, &given), XP_REPLY_NONE);
    EQUAL(xp_read_reply(&r, head, 2, 0, &got, &given), XP_REPLY_NONE);
    EQUAL(xp_read_reply(&r, 0, 2, 0, &got, &given), XP_REPLY_NONE);
    EQUAL(xp_read_reply(&r, sizeof r + 12, 2, 0, &got, &given), XP_REPLY_NONE);
    r.given[1] = (xp_given){XP_STATUS_NOT_LIVE, UINT32_MAX, 0};
    EQUAL(xp_read_reply(&r, two, 2, 2, &got, &given), XP_REPLY_GOOD);
    EQUAL(got.given[1].count, 0);
    r.given[1] = (xp_given){XP_STATUS_OK, UINT32_MAX, 0}; /* the sum is not a 1 */
    EQUAL(xp_read_reply(&r, two, 2, 1, &got, &given), XP_REPLY_FDS_LOST);
    r.magic[0] = 'Y';
    EQUAL(xp_read_reply(&r, one, 1, 2, &got, &given), XP_REPLY_NONSENSE);
}

static void test_an_idle_client_is_cut_off(void)
{
    set_up();
    int fds[20]; /* more than are let in at once */
    for (int i = 0; i < 20; i++)
        fds[i] = connected();
    uint32_t count;
    EQUAL(asked(XP_OP_HELLO, 0, 0, &count), XP_STATUS_OK); /* after a second at most */
    for (int i = 0; i < 16; i++) {
        struct pollfd p = {.fd = fds[i], .events = POLLIN};
        EQUAL(poll(&p, 1, 20000), 1);
    }
    for (int i = 0; i < 20; i++)
        close(fds[i]);
    tear_down();
}

static void *ask_often(void *arg)
{
    uint32_t i = (uint32_t)(uintptr_t)arg, count;
    for (int k = 0; k < 100; k++) {
        uint32_t status = asked(k % 2 ? XP_OP_HELLO : XP_OP_FDS, i, 0, &count);
        CHECK(status == XP_STATUS_OK || (i == 2 && status == XP_STATUS_NOT_LIVE));
    }
    return NULL;
}

static void test_withdrawing_while_others_ask(void)
{
    pthread_t threads[3];
    set_up();
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, ask_often, (void *)i) == 0);
    usleep(5000);
    xp_withdraw(entry(2), XP_REASON_PUT);
    entry(2)->fds[0] = -1; /* nobody looks at it any more */
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    tear_down();
}

int main(void)
{
    xp_engine_init();
    RUN(test_requests);
    RUN(test_several_at_once);
    RUN(test_fds_on_demand);
    RUN(test_replies);
    RUN(test_an_idle_client_is_cut_off);
    RUN(test_withdrawing_while_others_ask);
    return 0;
}
