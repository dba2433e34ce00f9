/* Packets of any content to an exporter, and any reply to an importer. Every request gets one reply that makes sense,
 * and no fd stays behind on either side. */
#include "../c/support.h"

#include <dirent.h>
#include <sys/socket.h>

#define REPLY_FDS 253

static xp_domain *domain;
static char *table;
static int ends[2];

static int make(int *fd, uint64_t object, int64_t a, uint64_t b)
{
    (void)a, (void)b;
    if (object == 2) /* the driver fails */
        return 1;
    *fd = object == 3 ? -1 : dup(ends[0]);
    return 0;
}

static xp_entry *entry(uint32_t i) { return (xp_entry *)(table + XP_TABLE_HEADER) + i; }

static void set_up(void)
{
    xp_engine_init();
    domain = new_commons();
    int fd = memfd(XP_TABLE_SIZE, F_SEAL_SHRINK);
    table = mmap(NULL, XP_TABLE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(table != MAP_FAILED && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    memcpy(((xp_table *)table)->cookie, cookie, XP_COOKIE);
    for (uint32_t i = 0; i < 4; i++) {
        entry(i)->generation = i + 1;
        entry(i)->fd_count = i < 2 ? 1 + i : i == 2 ? 300 : 1u << 30; /* the last: our own table, scribbled over */
        for (unsigned k = 0; k < XP_ENTRY_FDS; k++)
            entry(i)->fds[k] = ends[k % 2];
    }
    entry(2)->flags = XP_ENTRY_ON_DEMAND;
    xp_offer *offer = calloc(1, sizeof *offer + 300 * sizeof(uint64_t));
    CHECK(offer != NULL);
    *offer = (xp_offer){.entry = 2, .count = 300, .generation = 3, .make = make};
    offer->objects[254] = 2;
    offer->objects[260] = 3;
    xp_make_offer(offer);
    xp_error error;
    CHECK(xp_serve((xp_table *)table, fd, domain, NULL, &error));
}

/* All but pipes: the sanitizers talk to their symbolizer by some. */
static int open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    CHECK(dir != NULL);
    for (struct dirent *each; (each = readdir(dir));) {
        char target[8] = "";
        n += readlinkat(dirfd(dir), each->d_name, target, sizeof target - 1) >= 0 && strncmp(target, "pipe:", 5) != 0;
    }
    closedir(dir);
    return n;
}

static size_t receive(xp_reply *reply, uint32_t *fds)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(REPLY_FDS * sizeof(int))];
    } control;
    struct iovec part = {reply, sizeof *reply};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(ends[1], &msg, MSG_CMSG_CLOEXEC);
    CHECK(n > 0);
    *fds = 0;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c) {
        *fds = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (uint32_t i = 0; i < *fds; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            close(fd);
        }
    }
    return (size_t)n;
}

static void read_reply(const uint8_t *data, size_t size, uint32_t fds)
{
    xp_reply r;
    uint32_t given, asked = 1 + fds % 5;
    switch (xp_read_reply(data, size, asked, fds, &r, &given)) {
    case XP_REPLY_GOOD:
        CHECK(given > 0 && given <= asked && size == offsetof(xp_reply, given) + given * sizeof *r.given);
        CHECK(memcmp(r.magic, "XPSR", 4) == 0);
        for (uint32_t i = 0; i < given; i++) {
            CHECK(r.given[i].count <= fds && (r.given[i].status == 0 || r.given[i].count == 0));
            fds -= r.given[i].count;
        }
        EQUAL(fds, 0);
        break;
    case XP_REPLY_NONE: CHECK(given == 0 && (size < 16 || size > sizeof r || size % 12 != 4)); break;
    default: EQUAL(given, 0); break;
    }
}

/* The first byte: what of the request is made to fit; 128: it is a reply instead. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned runs;
    static int before;
    static xp_request q;
    static char packet[sizeof q + 8];
    xp_reply r;
    if (size == 0)
        return 0;
    if (domain == NULL) {
        set_up();
        before = open_fds();
    }
    unsigned fit = *data++;
    size--;
    if (fit & 128) {
        read_reply(data, size, fit & 127);
        return 0;
    }
    memset(&q, 0, sizeof q);
    memcpy(&q, data, size < sizeof q ? size : sizeof q);
    size_t sent = size < sizeof packet ? size : sizeof packet;
    uint32_t count = 0;
    if (fit & 1) { /* whole: of at least one entry */
        memcpy(q.magic, "XPSQ", 4);
        count = sent <= 56 ? 1 : (uint32_t)((sent - 24) / 32);
        count = count < XP_FDS_AT_ONCE ? count : XP_FDS_AT_ONCE;
        sent = offsetof(xp_request, wanted) + count * sizeof *q.wanted;
    }
    if (fit & 2)
        memcpy(q.cookie, cookie, XP_COOKIE);
    for (uint32_t i = 0; i < count; i++) {
        xp_wanted *w = &q.wanted[i];
        if (fit & 4)
            w->entry %= 5;
        if ((fit & 8) && w->entry < 4)
            w->generation = w->entry + 1;
        if (fit & 16)
            memset(w->nonce, 0, sizeof w->nonce);
        if (fit & 32)
            w->first %= 320;
    }
    if (fit & 64)
        q.op = 1 + q.op % 2;
    memset(packet, 0, sizeof packet);
    memcpy(packet, &q, sizeof q);
    CHECK(xp_answer(ends[0], packet, sent));
    uint32_t fds, given, asked = count ? count : 1;
    size_t got = receive(&r, &fds);
    xp_reply copy = r;
    EQUAL(xp_read_reply(&copy, got, asked, fds, &r, &given), XP_REPLY_GOOD);
    CHECK(given <= asked && memcmp(&copy, &r, got) == 0);
    for (uint32_t i = 0; i < given; i++)
        CHECK(r.given[i].status <= 5 && (r.given[i].status == 0) == (r.given[i].count > 0));
    if (q.op == 1 && fds)
        EQUAL(fds, 4);
    if (++runs % 4096 == 0)
        EQUAL(open_fds(), before);
    return 0;
}
