/* Serving importers: the sockets, and the fds of live entries, which are made on demand if there are too many to
 * keep open. */
#include "events.h"
#include "loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define OFFER_BUCKETS 256u
#define CONNECTIONS 32
#define LISTENERS 2
#define BACKLOG 128
#define CONNECTION_NS 1000000000u
#define PATIENCE_NS 20000000u /* if all connections are used, one that was silent for so long is closed for the next */
#define PAUSE_NS 200000000u
#define ANSWER_NS 5000000u /* the limit for making fds for one answer: the warden has other work */

static pthread_mutex_t send_mu = PTHREAD_MUTEX_INITIALIZER; /* held while fds of an entry are being sent */
static struct {
    xp_table *table;
    int table_fd;
    xp_domain *domain;
    xp_offer *offers[OFFER_BUCKETS];
} serving;

/* Called with xp_mu, so that no fork leaves a child with a socket. The loop's thread may read them without. */
static int listening[LISTENERS] = {-1, -1};
static uint64_t paused; /* until when nobody is accepted, for lack of fds or connections; 0 if that is not so */
static struct {
    int fd;
    pid_t pid;
    uint64_t serial, deadline, heard;
} connections[CONNECTIONS] = {[0 ... CONNECTIONS - 1] = {.fd = -1}};

/* --- answering ---------------------------------------------------------------------------------------------------- */

typedef struct {
    xp_reply r;
    uint32_t given, fds, made; /* how many of each of these */
    int fd[XP_FDS_AT_ONCE], own[XP_FDS_AT_ONCE]; /* `own`: the fds in `fd` that were made for this answer */
} xp_answers;

static xp_given *add(xp_answers *a, uint32_t status)
{
    xp_given *g = &a->r.given[a->given++];
    *g = (xp_given){.status = status};
    return g;
}

/* False if the connection is of no further use. */
static bool reply(int fd, xp_answers *a)
{
    memcpy(a->r.magic, XP_REPLY_MAGIC, sizeof a->r.magic);
    struct iovec part = {&a->r, offsetof(xp_reply, given) + a->given * sizeof *a->r.given};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(XP_FDS_AT_ONCE * sizeof(int))];
    } control;
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};
    if (a->fds) {
        memset(&control, 0, sizeof control);
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(a->fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(a->fds * sizeof(int));
        memcpy(CMSG_DATA(c), a->fd, a->fds * sizeof(int));
    }
    if (sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return true;
    if (a->fds == 0 || (errno != EBADF && errno != EINVAL && errno != ETOOMANYREFS))
        return false;
    uint32_t status = errno == ETOOMANYREFS ? XP_STATUS_BUSY : XP_STATUS_DRIVER_ERROR;
    for (uint32_t i = 0; i < a->given; i++) /* the kernel does not report which one it refuses */
        if (a->r.given[i].count)
            a->r.given[i] = (xp_given){.status = status};
    a->fds = 0;
    return reply(fd, a);
}

static bool refuse(int fd, uint32_t status)
{
    xp_answers a = {.given = 0};
    add(&a, status);
    return reply(fd, &a);
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
    bool refused = self < 0 && (errno == EPERM || errno == ENOSYS); /* blocked by seccomp; the life lock shows deaths, too */
    pthread_mutex_lock(&d->mu); /* until then nobody may close the commons' fd, whose number could be used again */
    bool good = d->fd >= 0 && (refused || self >= 0);
    xp_answers a = {.fds = refused ? 3 : 4, .fd = {serving.table_fd, d->fd, d->bell, self}};
    if (good) {
        xp_given *g = add(&a, XP_STATUS_OK);
        g->count = g->total = a.fds;
        good = reply(fd, &a);
    } else {
        good = refuse(fd, d->fd < 0 ? XP_STATUS_NOT_LIVE : XP_STATUS_DRIVER_ERROR);
    }
    pthread_mutex_unlock(&d->mu);
    if (self >= 0)
        close(self);
    return good;
}

static bool is_live(const uint8_t *cookie, const xp_wanted *w)
{
    if (serving.table == NULL || memcmp(cookie, serving.domain->cookie, XP_COOKIE) != 0 || w->entry >= XP_ENTRIES)
        return false;
    const xp_entry *e = xp_entry_at((const char *)serving.table, w->entry);
    uint8_t differs = w->generation == 0 || XP_LOAD(&e->generation) != w->generation;
    for (unsigned i = 0; i < sizeof w->nonce; i++) /* takes the same time wherever they differ */
        differs |= w->nonce[i] ^ XP_RELAXED(&e->nonce[i]);
    return !differs;
}

/* Make `want` fds of an offer, from `first` on: all of them, or none. */
static bool make(xp_answers *a, const xp_offer *o, uint32_t first, uint32_t want)
{
    uint32_t before = a->made;
    for (uint32_t i = 0; i < want; i++) {
        int *made = &a->own[a->made];
        *made = -1;
        if (o->make(made, o->objects[first + i], o->a, o->b) != 0 || *made < 0) {
            while (a->made > before)
                close(a->own[--a->made]);
            return false;
        }
        a->fd[a->fds + i] = *made;
        a->made++;
    }
    return true;
}

/* Answer for one entry. Returns false if the following entries need another request. */
static bool give(xp_answers *a, const uint8_t *cookie, const xp_wanted *w)
{
    xp_given *g = add(a, XP_STATUS_NOT_LIVE);
    if (!is_live(cookie, w))
        return true;
    const xp_entry *e = xp_entry_at((const char *)serving.table, w->entry);
    const xp_offer *o = e->flags & XP_ENTRY_ON_DEMAND ? *find_offer(w->entry) : NULL;
    if (e->flags & XP_ENTRY_ON_DEMAND && (o == NULL || o->generation != w->generation))
        return true;
    g->total = o ? o->count : e->fd_count < XP_ENTRY_FDS ? e->fd_count : XP_ENTRY_FDS;
    g->status = XP_STATUS_MALFORMED;
    if (w->first >= g->total)
        return true;
    uint32_t left = g->total - w->first, room = XP_FDS_AT_ONCE - a->fds, want = left < room ? left : room;
    g->status = XP_STATUS_DRIVER_ERROR;
    if (o == NULL)
        memcpy(a->fd + a->fds, e->fds + w->first, want * sizeof(int));
    else if (!make(a, o, w->first, want))
        return false;
    g->status = XP_STATUS_OK;
    g->count = want;
    a->fds += want;
    return want == left;
}

/* With send_mu. */
static bool answer(int fd, const xp_request *q, uint32_t count)
{
    if (count == 0 || (q->op != XP_OP_FDS && (q->op != XP_OP_HELLO || count != 1)))
        return refuse(fd, XP_STATUS_MALFORMED);
    if (q->op == XP_OP_HELLO)
        return is_live(q->cookie, q->wanted) ? send_hello(fd) : refuse(fd, XP_STATUS_NOT_LIVE);
    xp_answers a = {.given = 0};
    uint64_t until = xp_now() + ANSWER_NS;
    while (give(&a, q->cookie, &q->wanted[a.given]) && a.given < count && a.fds < XP_FDS_AT_ONCE &&
           (a.made == 0 || xp_now() < until))
        ;
    bool keep = reply(fd, &a);
    while (a.made)
        close(a.own[--a.made]);
    return keep;
}

bool xp_answer(int fd, const void *packet, size_t size)
{
    xp_request q;
    uint32_t count = xp_read_request(&q, packet, size);
    pthread_mutex_lock(&send_mu);
    bool keep = answer(fd, &q, count);
    pthread_mutex_unlock(&send_mu);
    return keep;
}

/* --- connections -------------------------------------------------------------------------------------------------- */

/* Start or stop accepting connections; others wait in the backlog. With xp_mu. */
static void let_in(bool yes)
{
    for (uint32_t i = 0; i < LISTENERS; i++)
        if (listening[i] >= 0 && yes)
            xp_loop_add(listening[i], EPOLLIN, XP_READY_LISTEN, 0, i); /* EEXIST: it accepts already */
        else if (listening[i] >= 0)
            xp_loop_remove(listening[i]);
}

/* With xp_mu. */
static void drop_with_mu(int i)
{
    xp_loop_remove(connections[i].fd);
    close(connections[i].fd);
    connections[i].fd = -1;
    paused = 0;
    let_in(true);
}

static void drop_connection(int i)
{
    pthread_mutex_lock(&xp_mu);
    drop_with_mu(i);
    pthread_mutex_unlock(&xp_mu);
}

/* All connections are used. Close one of the process that has the most, or accept nobody until that one has been
 * silent for a moment, so that a process that floods us delays others by no more. Returns its index, or
 * CONNECTIONS. With xp_mu. */
static int make_room(uint64_t now)
{
    int most = 0, silent = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        int of_process = 0;
        for (int k = 0; k < CONNECTIONS; k++)
            of_process += connections[k].pid == connections[i].pid;
        if (of_process > most || (of_process == most && connections[i].heard < connections[silent].heard)) {
            most = of_process;
            silent = i;
        }
    }
    uint64_t ripe = connections[silent].heard + PATIENCE_NS;
    if (ripe > now) {
        let_in(false);
        paused = ripe;
        return CONNECTIONS;
    }
    drop_with_mu(silent);
    return silent;
}

/* Called with xp_mu. Accept one connection. Returns false if there is none left. */
static bool accept_one(int listening, uint64_t now)
{
    static uint64_t serials;
    int i = 0;
    while (i < CONNECTIONS && connections[i].fd >= 0)
        i++;
    if (i == CONNECTIONS && (i = make_room(now)) == CONNECTIONS)
        return false;
    int fd = xp_above_stdio(accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), close);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            let_in(false); /* otherwise we would be woken again and again */
            paused = now + PAUSE_NS;
        }
        return errno == EINTR || errno == ECONNABORTED;
    }
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0 || peer.uid != geteuid()) {
        char request; /* an unread request would turn the reply into a reset; an honest client sends one */
        if (recv(fd, &request, sizeof request, MSG_DONTWAIT) < 0) {
            /* the request has not arrived yet */
        }
        refuse(fd, XP_STATUS_OTHER_USER);
        close(fd);
    } else if (xp_loop_add(fd, EPOLLIN | EPOLLRDHUP, XP_READY_CONNECTION, ++serials, (uint32_t)i) < 0) {
        close(fd);
    } else {
        connections[i].fd = fd;
        connections[i].serial = serials;
        connections[i].pid = peer.pid;
        connections[i].heard = now;
        connections[i].deadline = now + CONNECTION_NS;
    }
    return true;
}

void xp_on_listen(uint32_t i, uint64_t now)
{
    pthread_mutex_lock(&xp_mu);
    for (int burst = 0; burst < CONNECTIONS && i < LISTENERS && listening[i] >= 0 && accept_one(listening[i], now); burst++)
        ;
    pthread_mutex_unlock(&xp_mu);
}

void xp_on_connection(uint64_t serial, uint32_t i)
{
    if (i >= CONNECTIONS || connections[i].fd < 0 || connections[i].serial != serial)
        return;
    char packet[sizeof(xp_request) + 1];
    /* There is no room for control data, so the kernel closes fds that a peer sends us. */
    ssize_t n = recv(connections[i].fd, packet, sizeof packet, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    bool keep = false;
    if (n > 0)
        keep = xp_answer(connections[i].fd, packet, (size_t)n);
    if (keep)
        connections[i].heard = xp_now();
    else
        drop_connection((int)i);
}

uint64_t xp_connections_check(uint64_t now)
{
    uint64_t earliest = XP_FOREVER;
    for (int i = 0; i < CONNECTIONS; i++) {
        if (connections[i].fd < 0)
            continue;
        if (connections[i].deadline <= now)
            drop_connection(i);
        else if (connections[i].deadline < earliest)
            earliest = connections[i].deadline;
    }
    if (paused && paused <= now) {
        pthread_mutex_lock(&xp_mu);
        paused = 0;
        let_in(true);
        pthread_mutex_unlock(&xp_mu);
    }
    return paused && paused < earliest ? paused : earliest;
}

/* Called with xp_mu, so that no fork in between leaves a child with the socket. Returns -1 and errno on failure. */
static int listen_at(const struct sockaddr_un *name, size_t size, uint32_t i)
{
    int fd = xp_above_stdio(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), close);
    if (fd < 0 || (bind(fd, (const struct sockaddr *)name, (socklen_t)size) == 0 && listen(fd, BACKLOG) == 0 &&
                   xp_loop_add(fd, EPOLLIN, XP_READY_LISTEN, 0, i) == 0))
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Listen at that name and, if possible, at `file` when it is not NULL. Returns 0, or errno and the failing call. */
static int start_listening(const struct sockaddr_un *name, size_t size, const char *file, const char **call)
{
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    int rc = 0;
    pthread_mutex_lock(&xp_mu);
    if (!xp_loop_running() || listening[0] >= 0) {
        rc = EALREADY;
        *call = "serve";
    } else if ((listening[0] = listen_at(name, size, 0)) < 0) {
        rc = errno;
        *call = "bind";
    } else if (file && strlen(file) < sizeof there.sun_path) {
        strcpy(there.sun_path, file);
        listening[1] = listen_at(&there, sizeof there, 1);
    }
    pthread_mutex_unlock(&xp_mu);
    return rc;
}

static void close_socket(int *fd)
{
    if (*fd >= 0 && !xp_loop_robbed()) /* which removes it from the epoll */
        close(*fd);
    *fd = -1;
}

/* With xp_mu. */
static void stop_listening(void)
{
    for (unsigned i = 0; i < LISTENERS; i++)
        close_socket(&listening[i]);
}

/* --- exporting ---------------------------------------------------------------------------------------------------- */

bool xp_serve(xp_table *table, int table_fd, xp_domain *d, const char *file, xp_error *error)
{
    if (!d->owner || memcmp(table->cookie, d->cookie, XP_COOKIE) != 0)
        return xp_failed(error, 0, "not the table of this process and its own domain");
    int rc = xp_loop_start();
    if (rc)
        return xp_failed(error, rc, "starting the warden");
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int at = 1 + (int)strlen(strcpy(name.sun_path + 1, "xpushare/"));
    for (unsigned i = 0; i < XP_COOKIE; i++)
        at += snprintf(name.sun_path + at, 3, "%02x", d->cookie[i]);
    const char *call = "serve (this process does already)";
    pthread_mutex_lock(&send_mu);
    size_t size = offsetof(struct sockaddr_un, sun_path) + (size_t)at;
    rc = serving.table == table && serving.domain == d ? 0 /* one whose caller was interrupted and asks again */
         : serving.table                               ? EALREADY
                                                       : start_listening(&name, size, file, &call);
    if (rc == 0 && serving.table == NULL) {
        xp_domain_ref(d);
        serving.table = table;
        serving.table_fd = table_fd;
        serving.domain = d;
    }
    pthread_mutex_unlock(&send_mu);
    return rc ? xp_failed(error, rc, call) : true;
}

void xp_serving_end(const xp_domain *d)
{
    pthread_mutex_lock(&send_mu);
    xp_domain *served = d == NULL || serving.domain == d ? serving.domain : NULL;
    if (served) {
        serving.table = NULL;
        serving.domain = NULL;
        pthread_mutex_lock(&xp_mu);
        stop_listening();
        pthread_mutex_unlock(&xp_mu);
    }
    pthread_mutex_unlock(&send_mu);
    if (served)
        xp_domain_unref(served);
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

static void close_connections(void)
{
    for (int i = 0; i < CONNECTIONS; i++)
        close_socket(&connections[i].fd);
}

void xp_serving_stop(void)
{
    xp_serving_end(NULL);
    close_connections(); /* the thread that had them has ended */
}

void xp_serving_forked(void)
{
    stop_listening(); /* a listening socket would outlive the parent */
    close_connections();
    memset(&serving, 0, sizeof serving); /* it is the parent's */
    pthread_mutex_init(&send_mu, NULL);
}
