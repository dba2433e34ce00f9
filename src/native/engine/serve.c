/* The warden's answers: fds of live entries, made on demand where there are too many to be kept open. */
#include "events.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define OFFER_BUCKETS 256u
static pthread_mutex_t send_mu = PTHREAD_MUTEX_INITIALIZER; /* held while fds of an entry are being sent */
static struct {
    xp_table *table;
    int table_fd;
    xp_domain *domain;
    xp_offer *offers[OFFER_BUCKETS];
} serving;

/* --- answering ---------------------------------------------------------------------------------------------------- */

/* False: the connection is of no further use. */
static bool reply(int fd, uint32_t status, const int *fds, uint32_t count, uint32_t total)
{
    xp_reply r = {XP_REPLY_MAGIC, status, count, total};
    struct iovec part = {&r, sizeof r};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(XP_FDS_AT_ONCE * sizeof(int))];
    } control;
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        memset(&control, 0, sizeof control);
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    if (sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return true;
    if (count && (errno == EBADF || errno == EINVAL || errno == ETOOMANYREFS))
        return reply(fd, errno == ETOOMANYREFS ? XP_STATUS_BUSY : XP_STATUS_DRIVER_ERROR, NULL, 0, 0);
    return false;
}

static xp_offer **find_offer(uint32_t entry)
{
    xp_offer **p = &serving.offers[entry % OFFER_BUCKETS];
    while (*p && (*p)->entry != entry)
        p = &(*p)->next;
    return p;
}

static bool send_hello(int fd)
{
    xp_domain *d = serving.domain;
    int self = xp_pidfd_open(getpid());
    pthread_mutex_lock(&d->mu); /* meanwhile nobody may close the commons' fd, whose number could be used again */
    int fds[4] = {serving.table_fd, d->fd, d->bell, self};
    bool good = d->fd >= 0 && self >= 0;
    good = good ? reply(fd, XP_STATUS_OK, fds, 4, 4)
                : reply(fd, d->fd < 0 ? XP_STATUS_NOT_LIVE : XP_STATUS_DRIVER_ERROR, NULL, 0, 0);
    pthread_mutex_unlock(&d->mu);
    if (self >= 0)
        close(self);
    return good;
}

static bool send_made(int fd, const xp_request *q)
{
    const xp_offer *o = *find_offer(q->entry);
    if (o == NULL || o->generation != q->generation)
        return reply(fd, XP_STATUS_NOT_LIVE, NULL, 0, 0);
    if (q->first >= o->count)
        return reply(fd, XP_STATUS_MALFORMED, NULL, 0, 0);
    int fds[XP_FDS_AT_ONCE];
    uint32_t want = o->count - q->first, n = 0;
    want = want < XP_FDS_AT_ONCE ? want : XP_FDS_AT_ONCE;
    while (n < want) {
        fds[n] = -1;
        if (o->make(&fds[n], o->objects[q->first + n], o->a, o->b) != 0 || fds[n] < 0)
            break;
        n++;
    }
    bool good = n == want ? reply(fd, XP_STATUS_OK, fds, n, o->count)
                          : reply(fd, XP_STATUS_DRIVER_ERROR, NULL, 0, o->count);
    while (n)
        close(fds[--n]);
    return good;
}

/* With send_mu. */
static bool answer(int fd, const xp_request *q, size_t size)
{
    if (size != sizeof *q || memcmp(q->magic, XP_REQUEST_MAGIC, sizeof q->magic) != 0 || q->op < XP_OP_HELLO || q->op > XP_OP_FDS)
        return reply(fd, XP_STATUS_MALFORMED, NULL, 0, 0);
    if (serving.table == NULL || q->entry >= XP_ENTRIES || memcmp(q->cookie, serving.domain->cookie, XP_COOKIE) != 0)
        return reply(fd, XP_STATUS_NOT_LIVE, NULL, 0, 0);
    const xp_entry *e = xp_entry_at((const char *)serving.table, q->entry);
    uint8_t differs = 0;
    if (q->generation == 0 || XP_LOAD(&e->generation) != q->generation)
        return reply(fd, XP_STATUS_NOT_LIVE, NULL, 0, 0);
    for (unsigned i = 0; i < sizeof q->nonce; i++) /* takes the same time wherever they differ */
        differs |= q->nonce[i] ^ e->nonce[i];
    if (differs)
        return reply(fd, XP_STATUS_NOT_LIVE, NULL, 0, 0);
    if (q->op == XP_OP_HELLO)
        return send_hello(fd);
    if (e->flags & XP_ENTRY_ON_DEMAND)
        return send_made(fd, q);
    uint32_t total = e->fd_count < XP_ENTRY_FDS ? e->fd_count : XP_ENTRY_FDS;
    if (q->first >= total)
        return reply(fd, XP_STATUS_MALFORMED, NULL, 0, total);
    return reply(fd, XP_STATUS_OK, e->fds + q->first, total - q->first, total);
}

void xp_refuse(int fd) { reply(fd, XP_STATUS_OTHER_USER, NULL, 0, 0); }

bool xp_answer(int fd, const void *packet, size_t size)
{
    xp_request q;
    memset(&q, 0, sizeof q);
    memcpy(&q, packet, size < sizeof q ? size : sizeof q);
    pthread_mutex_lock(&send_mu);
    bool keep = answer(fd, &q, size);
    pthread_mutex_unlock(&send_mu);
    return keep;
}

void xp_serving_end(const xp_domain *d)
{
    pthread_mutex_lock(&send_mu);
    xp_domain *served = d == NULL || serving.domain == d ? serving.domain : NULL;
    if (served) {
        serving.table = NULL;
        serving.domain = NULL;
        xp_warden_deaf();
    }
    pthread_mutex_unlock(&send_mu);
    if (served)
        xp_domain_unref(served);
}

void xp_serving_forked(void)
{
    memset(&serving, 0, sizeof serving); /* it is the parent's */
    pthread_mutex_init(&send_mu, NULL);
}

/* --- exporting ---------------------------------------------------------------------------------------------------- */

bool xp_serve(xp_table *table, int table_fd, xp_domain *d, const char *file, xp_error *error)
{
    if (!d->owner || memcmp(table->cookie, d->cookie, XP_COOKIE) != 0)
        return xp_failed(error, 0, "not the table of this process and its own domain");
    int rc = xp_warden_start();
    if (rc)
        return xp_failed(error, rc, "starting the warden");
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int at = 1 + (int)strlen(strcpy(name.sun_path + 1, "xpushare/"));
    for (unsigned i = 0; i < XP_COOKIE; i++)
        at += snprintf(name.sun_path + at, 3, "%02x", d->cookie[i]);
    const char *call = "serve (this process does already)";
    pthread_mutex_lock(&send_mu);
    size_t size = offsetof(struct sockaddr_un, sun_path) + (size_t)at;
    rc = serving.table == table && serving.domain == d ? 0 /* one whose caller was interrupted, and asks again */
         : serving.table                               ? EALREADY
                                                       : xp_warden_listen(&name, size, file, &call);
    if (rc == 0 && serving.table == NULL) {
        xp_domain_ref(d);
        serving.table = table;
        serving.table_fd = table_fd;
        serving.domain = d;
    }
    pthread_mutex_unlock(&send_mu);
    return rc ? xp_failed(error, rc, call) : true;
}

void xp_withdraw(xp_entry *e, uint32_t reason)
{
    xp_offer *ended = NULL;
    pthread_mutex_lock(&send_mu);
    uint64_t generation = XP_LOAD(&e->generation);
    if (generation) {
        XP_STORE(&e->reason, reason);
        XP_STORE(&e->retired, generation);
        XP_STORE(&e->generation, 0);
    }
    const xp_entry *first = serving.table ? xp_entry_at((const char *)serving.table, 0) : NULL;
    if (first && (uintptr_t)e >= (uintptr_t)first && (uintptr_t)e < (uintptr_t)(first + XP_ENTRIES)) {
        xp_offer **p = find_offer((uint32_t)(e - first));
        if ((ended = *p))
            *p = ended->next;
    }
    pthread_mutex_unlock(&send_mu);
    free(ended);
}

void xp_make_offer(xp_offer *o)
{
    pthread_mutex_lock(&send_mu);
    xp_offer **p = find_offer(o->entry), *old = *p;
    o->next = old ? old->next : NULL;
    *p = o;
    pthread_mutex_unlock(&send_mu);
    free(old);
}
