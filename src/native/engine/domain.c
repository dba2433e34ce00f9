/* Membership in a commons: claiming an index, telling the living from the dead, reaping, holders and slots. */
#include "events.h"
#include "table.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 16
#endif

/* The kernel drops the locks of a dying process before it closes the process's driver fds; the pidfd says when the
 * process has ended. Wait for that, but not for ever: an exec drops the lock, too, and the pid in the member record may
 * be a lie. */
#define DYING_NS 300000000u
/* A peer can make up a thousand dead members, and slots and entries without number to sweep for each, while callers
 * wait for d->mu. So sweep for no longer than that at once, in one sweep or in many, and in the long run for that part
 * of the time. */
#define SWEEP_BURST_NS 10000000u
#define SWEEP_REST 5u
#define SWEEP_STEP 4096u /* slots, and entries */
#define FIRST_COUNTS 256u

pthread_mutex_t xp_mu = PTHREAD_MUTEX_INITIALIZER;
xp_domain *xp_domains;

void xp_domain_ref(xp_domain *d) { __atomic_fetch_add(&d->refs, 1, __ATOMIC_RELAXED); }

/* They grow as they are needed: making a whole MiB at the first contact with an exporter took much of its time. */
bool xp_counts_reach(xp_counts *counts, uint32_t i)
{
    uint32_t length = counts->length ? counts->length : FIRST_COUNTS;
    if (i < counts->length)
        return true;
    while (length <= i)
        length *= 2;
    uint32_t *at = calloc(length, sizeof *at), *before = counts->at;
    if (at == NULL)
        return false;
    if (before)
        memcpy(at, before, counts->length * sizeof *at);
    counts->at = at; /* in this order: a child may be forked at any moment, and finds what was allocated */
    counts->length = length;
    free(before);
    return true;
}

void xp_domain_unref(xp_domain *d)
{
    if (__atomic_sub_fetch(&d->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (d->base)
        munmap(d->base, XP_COMMONS_SIZE);
    if (d->bell >= 0)
        close(d->bell);
    if (d->last_fd > 0)
        close(d->last_fd);
    free(d->released);
    free(d->holds.at);
    free(d->attaches.at);
    free(d->able.at);
    free(d->slots_live);
    free(d);
}

/* A process stays in its own for ever; asking /proc is slow. */
static uint64_t pid_namespace(void)
{
    static uint64_t known;
    static unsigned asked = UINT_MAX; /* in which child */
    unsigned forks = XP_RELAXED(&xp_fork_count);
    struct stat st;
    if (XP_LOAD(&asked) != forks) {
        XP_STORE(&known, stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0);
        XP_STORE(&asked, forks);
    }
    return XP_LOAD(&known);
}

/* --- alive or dead ------------------------------------------------------------------------------------------------ */

enum life { LIVING, DYING, DEAD, NOBODY };

/* For so long whoever is not living is taken for what it was found to be: waiters look again and again, and a peer can
 * make up a thousand members. */
#define VERDICT_NS 50000000u

static enum life judged(xp_domain *d, uint32_t m, enum life life, uint64_t since, uint64_t now)
{
    d->verdicts[m] = (xp_verdict){.until = now + VERDICT_NS, .since = since, .life = life};
    return life;
}

static enum life life_of(xp_domain *d, uint32_t m, int *pid)
{
    *pid = 0;
    if (m == d->member || d->fd < 0) {
        *pid = m == d->member ? getpid() : 0;
        return LIVING;
    }
    xp_member *record = xp_member_at(d, m);
    const xp_verdict *last = &d->verdicts[m];
    bool nobody = XP_LOAD(&record->state) == 0;
    uint64_t now = xp_now(), since = XP_RELAXED(&record->attached_ns);
    if (now < last->until && since == last->since && nobody == (last->life == NOBODY))
        return (enum life)last->life; /* nobody else has come to the index */
    if (xp_lock_holder(d->fd, XP_LIFE_BYTE + (int64_t)m, pid) != 0) {
        d->dying_since[m] = 0;
        return LIVING;
    }
    if (nobody)
        return judged(d, m, NOBODY, since, now);
    int pidfd = d->pidfds[m], mine = -1;
    int declared = (int)XP_RELAXED(&record->pid);
    if (pidfd < 0 && declared > 0 && XP_RELAXED(&record->pid_namespace) == pid_namespace())
        pidfd = mine = xp_pidfd_open(declared);
    bool lie = mine >= 0 && !xp_pid_ours(declared); /* the record is a peer's to write */
    bool ended = pidfd < 0 || lie || xp_pidfd_readable(pidfd);
    if (mine >= 0)
        close(mine);
    if (!ended && d->dying_since[m] == 0)
        d->dying_since[m] = now;
    return judged(d, m, ended || now - d->dying_since[m] > DYING_NS ? DEAD : DYING, since, now);
}

bool xp_alive(xp_domain *d, uint32_t m)
{
    int pid;
    enum life life = life_of(d, m, &pid);
    return life == LIVING || life == DYING;
}

/* The owner knows, whatever the others have made of what it told them. */
uint32_t xp_slots_used(const xp_domain *d)
{
    uint32_t used = XP_LOAD(d->owner ? &d->next_slot : &((xp_commons *)d->base)->slots_used);
    return used < XP_SLOTS ? used : XP_SLOTS;
}

static uint32_t entries_used(const xp_domain *d)
{
    uint32_t used = XP_LOAD(&((xp_commons *)d->base)->entries_used);
    return used < XP_ENTRIES ? used : XP_ENTRIES;
}

bool xp_unreaped(xp_domain *d, const uint64_t *mask)
{
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        XP_EACH_BIT(XP_LOAD(&mask[i]) & XP_LOAD(&d->retry[i]), bits) {
            int pid;
            if (life_of(d, i * 64 + (uint32_t)__builtin_ctzll(bits), &pid) == DEAD)
                return true;
        }
    return false;
}

/* Take `m` out of every slot and entry from `from` up to `to`; what it owes is lost. With d->mu. False: a loss is put
 * off, since a living member's earlier point is outstanding, or a device may still store the point; come again. */
static bool sweep(xp_domain *d, uint32_t m, uint32_t cause, uint32_t from, uint32_t to)
{
    uint64_t pid = XP_RELAXED(&xp_member_at(d, m)->pid);
    bool swept = false, all = true;
    uint32_t used = xp_slots_used(d);
    if (m == d->member && used > d->attached_below)
        used = d->attached_below;
    for (uint32_t i = from; i < used && i < to; i++) {
        xp_words *w = xp_words_at(d, i);
        const xp_roles *r = xp_roles_at(d, i);
        bool attached = xp_bit(w->attached, m) || xp_bit(r->signallers, m) || xp_bit(r->candidates, m);
        xp_view v;
        uint64_t owed = xp_lowest_owed(w, &v, m);
        if (!attached && !owed) {
            if (m == 0) { /* the exporter's going matters to every waiter */
                xp_wake(d, w);
                swept = true;
            }
            continue;
        }
        /* Until our process has ended, a device of ours may store what we owe, which would lower the value. */
        bool put_off = owed && (owed != v.effective + 1 || (m == d->member && XP_LOAD(&w->device)));
        if (owed && !put_off)
            xp_lose(d, w, cause, pid);
        xp_roster_leave(d, i, m, cause, owed && !put_off);
        /* Nobody may know any more that there are sleepers, so without looking at the flag; and the bit last: until it
         * is clear another reaper does all this again. */
        xp_finish(w);
        xp_wake_all(w);
        swept = true;
        if (put_off)
            all = false;
        else
            xp_clear(w->attached, m);
    }
    if (swept)
        xp_ring(d);
    used = entries_used(d);
    uint64_t *holders = (uint64_t *)(d->base + XP_COMMONS_HOLDERS);
    for (uint32_t i = from; i < used && i < to; i++)
        if (xp_bit(holders + i * XP_MASK_WORDS, m))
            xp_clear(holders + i * XP_MASK_WORDS, m);
    return all;
}

static bool may_sweep(const xp_domain *d) { return d->sweep_at <= xp_now() + SWEEP_BURST_NS * SWEEP_REST; }

/* The next step of the sweep of a dead member. False: it is not over, or has put something off; then it begins anew. A
 * peer may claim all slots and entries there are, whose pages the kernel then has to make: no step goes through all. */
static bool sweep_dead(xp_domain *d, uint32_t m)
{
    const xp_member *record = xp_member_at(d, m);
    xp_sweep *s = &d->sweeps[m];
    uint64_t start = xp_now(), since = XP_RELAXED(&record->attached_ns);
    if (s->next == 0 || s->since != since)
        *s = (xp_sweep){.since = since};
    uint32_t slots = xp_slots_used(d), entries = entries_used(d), most = slots > entries ? slots : entries;
    uint32_t to = s->next + SWEEP_STEP;
    s->put_off |= !sweep(d, m, XP_LOAD(&record->state) == XP_EXITING ? XP_CAUSE_EXIT : XP_CAUSE_DEATH, s->next, to);
    s->next = to < most ? to : 0;
    d->sweep_at = (d->sweep_at > start ? d->sweep_at : start) + (xp_now() - start) * SWEEP_REST;
    return s->next == 0 && !s->put_off;
}

uint32_t xp_swept(const xp_domain *d, uint32_t m) { return d->sweeps[m].next; }

bool xp_sweeping(const xp_domain *d, uint32_t m, uint32_t before) { return xp_swept(d, m) > before && may_sweep(d); }

int xp_reap(xp_domain *d, uint32_t m, bool sure)
{
    if (m == d->member || d->fd < 0)
        return 0;
    int pid;
    enum life life = life_of(d, m, &pid);
    if (life == LIVING || life == NOBODY) {
        xp_clear(d->retry, m);
        return 0;
    }
    /* The life byte stays free meanwhile, so that everybody still sees the dead member as dead. */
    if ((life == DYING && !sure) || !may_sweep(d) || xp_lock(d->fd, XP_REAP_BYTE + (int64_t)m, true) != 0) {
        xp_set(d->retry, m);
        return -1;
    }
    int reaped = 0;
    xp_member *record = xp_member_at(d, m);
    if (xp_lock_holder(d->fd, XP_LIFE_BYTE + (int64_t)m, &pid) == 0 && XP_LOAD(&record->state) != 0) {
        bool all = sweep_dead(d, m);
        if (all)
            XP_STORE(&record->state, 0);
        reaped = all ? 1 : -1;
    }
    xp_lock(d->fd, XP_REAP_BYTE + (int64_t)m, false);
    xp_unwatch(d, m);
    xp_clear(d->polled, m);
    if (reaped < 0) {
        xp_set(d->retry, m);
        return -1;
    }
    xp_clear(d->retry, m);
    d->dying_since[m] = 0;
    return reaped;
}

/* --- joining and leaving ------------------------------------------------------------------------------------------ */

/* Try one index. 1: it is ours; 0: not this one; -1: errno. Nobody else has the domain yet. */
static int claim(xp_domain *d, uint32_t m)
{
    int rc = xp_lock(d->fd, XP_REAP_BYTE + (int64_t)m, true), pid, ours = 0;
    if (rc) {
        errno = rc;
        return rc == EAGAIN ? 0 : -1;
    }
    enum life life = life_of(d, m, &pid);
    if ((life == DEAD && may_sweep(d) && sweep_dead(d, m)) || life == NOBODY) {
        xp_member *record = xp_member_at(d, m);
        XP_STORE(&record->state, 0);
        rc = xp_lock(d->fd, XP_LIFE_BYTE + (int64_t)m, true);
        if (rc == 0) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            XP_STORE_RELAXED(&record->pid, (uint32_t)getpid());
            XP_STORE_RELAXED(&record->pid_namespace, pid_namespace());
            XP_STORE_RELAXED(&record->attached_ns, (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
            d->member = m;
            XP_STORE(&record->state, 1);
            ours = 1;
        } else if (rc != EAGAIN) {
            ours = -1;
        }
    }
    xp_lock(d->fd, XP_REAP_BYTE + (int64_t)m, false);
    errno = rc;
    return ours;
}

static bool map_commons(xp_domain *d, xp_error *error)
{
    xp_memfd wanted = {.nbytes = XP_COMMONS_SIZE, .exact = true};
    struct stat st;
    if ((d->base = xp_map_checked(d->fd, &wanted, true, &st, error)) == NULL)
        return false;
    d->dev = st.st_dev;
    d->ino = st.st_ino;
    xp_commons *c = (xp_commons *)d->base;
    if (d->owner) {
        memcpy(c->cookie, d->cookie, XP_COOKIE);
        c->version = XP_VERSION;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        memcpy(c->magic, XP_COMMONS_MAGIC, sizeof c->magic);
    } else if (memcmp(c->magic, XP_COMMONS_MAGIC, sizeof c->magic) != 0 || c->version != XP_VERSION) {
        return xp_failed(error, 0, "not a commons of this version");
    } else if (memcmp(c->cookie, d->cookie, XP_COOKIE) != 0) {
        return xp_failed(error, 0, "the commons of another exporter (its cookie differs)");
    }
    return true;
}

static void unlist(xp_domain *d)
{
    for (xp_domain **p = &xp_domains; *p; p = &(*p)->next)
        if (*p == d) {
            *p = d->next;
            return;
        }
}

static bool join(xp_domain *d, xp_error *error)
{
    if (!map_commons(d, error))
        return false;
    bool known = false;
    pthread_mutex_lock(&xp_mu);
    for (xp_domain *o = xp_domains; o && !known; o = o->next)
        known = o->dev == d->dev && o->ino == d->ino;
    if (!known) {
        d->next = xp_domains;
        xp_domains = d;
    }
    pthread_mutex_unlock(&xp_mu);
    if (known)
        return xp_failed(error, 0, "this process is a member of that commons already");
    int rc = 0;
    pthread_mutex_lock(&d->mu);
    if (d->owner)
        rc = claim(d, 0);
    for (uint32_t m = 1; m < XP_MEMBERS && !d->owner && rc == 0; m++)
        rc = claim(d, m);
    int code = rc < 0 ? errno : d->owner ? EAGAIN : ENOSPC;
    if (rc == 1) {
        /* An exec must end the membership, whoever passed us the fds. */
        fcntl(d->fd, F_SETFD, FD_CLOEXEC);
        fcntl(d->bell, F_SETFD, FD_CLOEXEC);
        XP_STORE(&d->left, 0);
    }
    pthread_mutex_unlock(&d->mu);
    if (rc == 1)
        return true;
    pthread_mutex_lock(&xp_mu);
    unlist(d);
    pthread_mutex_unlock(&xp_mu);
    return xp_failed(error, code, "joining the commons");
}

xp_domain *xp_join(int fd, int bell, const uint8_t *cookie, bool owner, xp_error *error)
{
    static uint64_t serials;
    xp_domain *d = calloc(1, sizeof *d);
    if (d == NULL) {
        xp_failed(error, ENOMEM, NULL);
        return NULL;
    }
    d->refs = 1;
    d->left = XP_LEFT;
    d->owner = owner;
    d->member = XP_NO_MEMBER;
    d->fd = fd;
    d->born = XP_RELAXED(&xp_fork_count);
    d->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
    memcpy(d->cookie, cookie, XP_COOKIE);
    pthread_mutex_init(&d->mu, NULL);
    for (uint32_t i = 0; i < XP_MEMBERS; i++)
        d->pidfds[i] = -1;
    if (owner) {
        d->released = malloc(XP_SLOTS * sizeof *d->released);
        d->slots_live = calloc(XP_SLOTS / 64, sizeof *d->slots_live);
    }
    bool good = owner && (d->released == NULL || d->slots_live == NULL) ? xp_failed(error, ENOMEM, NULL) : true;
    d->bell = bell;
    if (good && join(d, error))
        return d;
    d->bell = -1; /* the fds stay the caller's */
    xp_domain_unref(d);
    return NULL;
}

/* The commons of a mapped table, joined. What the table says is read once: its owner may change it meanwhile. */
static xp_domain *join_commons(int pidfd, const xp_table *table, const uint8_t *cookie)
{
    xp_table found;
    memcpy(&found, table, sizeof found);
    __asm__ __volatile__("" ::: "memory");
    if (memcmp(found.magic, XP_TABLE_MAGIC, sizeof found.magic) != 0 || found.version != XP_VERSION ||
        memcmp(found.cookie, cookie, XP_COOKIE) != 0)
        return NULL;
    xp_domain *d = NULL;
    xp_error ignored;
    struct stat st;
    int fd = xp_pidfd_getfd(pidfd, found.commons_fd);
    int bell = fd < 0 ? -1 : xp_pidfd_getfd(pidfd, found.bell_fd);
    if (bell >= 0 && fstat(fd, &st) == 0 && st.st_ino == found.commons_inode)
        d = xp_join(fd, bell, cookie, false, &ignored);
    if (d == NULL && bell >= 0)
        xp_close_received(bell);
    if (d == NULL && fd >= 0)
        xp_close_received(fd);
    return d;
}

bool xp_meet(const xp_handle *h, xp_met *met)
{
    xp_memfd wanted = {.nbytes = XP_TABLE_SIZE, .seals = F_SEAL_FUTURE_WRITE, .exact = true};
    xp_error ignored;
    if (h->pid_namespace == 0 || h->pid_namespace != pid_namespace() || h->pid == (uint32_t)getpid())
        return false;
    *met = (xp_met){.pidfd = xp_pidfd_open((int)h->pid), .table_fd = -1};
    if (met->pidfd >= 0)
        met->table_fd = xp_pidfd_getfd(met->pidfd, (int)h->table_fd);
    if (met->table_fd >= 0)
        met->table = xp_map_memfd(met->table_fd, &wanted, false, &ignored);
    if (met->table)
        met->domain = join_commons(met->pidfd, (const xp_table *)met->table, h->cookie);
    if (met->domain)
        return true;
    if (met->table)
        munmap(met->table, XP_TABLE_SIZE);
    if (met->table_fd >= 0)
        xp_close_received(met->table_fd);
    if (met->pidfd >= 0)
        close(met->pidfd);
    return false;
}

const char *xp_domain_wrong(const xp_domain *d)
{
    if (xp_usable(d))
        return NULL;
    int left = XP_RELAXED(&d->left);
    return left & XP_ROBBED ? XP_ROBBED_TEXT
           : left           ? XP_LEFT_TEXT
                            : "the domain is from before a fork";
}

void (*xp_on_robbed)(void);

void xp_rob(void)
{
    static unsigned told; /* 1 + the fork count then */
    pthread_mutex_lock(&xp_mu);
    for (xp_domain *d = xp_domains; d; d = d->next)
        __atomic_fetch_or(&d->left, XP_ROBBED, __ATOMIC_SEQ_CST);
    bool tell = told != xp_fork_count + 1;
    told = xp_fork_count + 1;
    pthread_mutex_unlock(&xp_mu);
    if (tell && xp_on_robbed)
        xp_on_robbed();
}

bool xp_stands(xp_domain *d)
{
    struct stat found;
    int fd = XP_RELAXED(&d->fd);
    if (fd < 0 || (fstat(fd, &found) == 0 && found.st_dev == d->dev && found.st_ino == d->ino))
        return fd >= 0;
    if (XP_LOAD(&d->left) == 0)
        xp_rob();
    return false;
}

void xp_leave(xp_domain *d)
{
    if (d->born != XP_RELAXED(&xp_fork_count))
        return; /* the fork handler closed the fds; the mapping goes with the last reference */
    if (d->owner)
        xp_serving_end(d);
    pthread_mutex_lock(&xp_mu);
    int left = __atomic_fetch_or(&d->left, XP_LEFT, __ATOMIC_SEQ_CST);
    if (left & XP_LEFT) {
        pthread_mutex_unlock(&xp_mu);
        return;
    }
    unlist(d);
    xp_nodes_drop(d, NULL);
    pthread_mutex_unlock(&xp_mu);
    pthread_mutex_lock(&d->mu);
    if (left & XP_ROBBED) { /* what is left is not ours to close; the others find us dead */
        d->fd = d->bell = -1;
        pthread_mutex_unlock(&d->mu);
        return;
    }
    XP_STORE(&xp_member_at(d, d->member)->state, XP_EXITING);
    bool all = sweep(d, d->member, XP_CAUSE_EXIT, 0, UINT32_MAX);
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        XP_EACH_BIT(d->watched[i], bits)
            xp_unwatch(d, i * 64 + (uint32_t)__builtin_ctzll(bits));
    xp_unwatch_bell(d);
    if (all) {
        XP_STORE(&xp_member_at(d, d->member)->state, 0);
        close(d->fd); /* drops the lock */
    } else { /* the others find us dead when that is closed, or our process has ended, and lose the rest when they can */
        d->last_fd = d->fd;
    }
    d->fd = -1;
    pthread_mutex_unlock(&d->mu);
}

/* A peer may send us any file, even a commons that we are a member of. Closing that drops our lock, so we take it
 * again. Nobody reaps us in between: a member without the lock counts as dying for a while, as long as its process
 * lives. */
void xp_close_received(int fd)
{
    struct stat found;
    if (fstat(fd, &found) == 0)
        xp_close_file(fd, &found);
    else
        close(fd);
}

void xp_close_file(int fd, const struct stat *found)
{
    xp_domain *d = NULL;
    if (S_ISREG(found->st_mode)) {
        pthread_mutex_lock(&xp_mu);
        for (d = xp_domains; d && (d->dev != found->st_dev || d->ino != found->st_ino); d = d->next)
            ;
        if (d)
            xp_domain_ref(d);
        pthread_mutex_unlock(&xp_mu);
    }
    if (d == NULL) {
        close(fd);
        return;
    }
    pthread_mutex_lock(&d->mu);
    close(fd);
    if (d->fd >= 0)
        xp_lock(d->fd, XP_LIFE_BYTE + (int64_t)d->member, true);
    pthread_mutex_unlock(&d->mu);
    xp_domain_unref(d);
}
bool xp_look(xp_domain *d, uint32_t m, int *pid, uint64_t *since, bool *alive)
{
    xp_member *record = xp_member_at(d, m);
    if (XP_LOAD(&record->state) == 0)
        return false;
    pthread_mutex_lock(&d->mu);
    enum life life = life_of(d, m, pid);
    pthread_mutex_unlock(&d->mu);
    *since = XP_RELAXED(&record->attached_ns);
    *alive = life == LIVING || life == DYING;
    return life != NOBODY;
}

long xp_reap_all(xp_domain *d)
{
    long count = 0;
    pthread_mutex_lock(&d->mu);
    for (uint32_t m = 0; m < XP_MEMBERS; m++)
        if (m != d->member && XP_LOAD(&xp_member_at(d, m)->state) != 0)
            count += xp_reap(d, m, false) == 1;
    pthread_mutex_unlock(&d->mu);
    return count;
}

/* --- holders and opens -------------------------------------------------------------------------------------------- */

static uint64_t *holders_at(xp_domain *d, uint32_t entry)
{
    return (uint64_t *)(d->base + XP_COMMONS_HOLDERS) + (size_t)entry * XP_MASK_WORDS;
}

static xp_opens *opens_at(xp_domain *d, uint32_t entry) { return (xp_opens *)(d->base + XP_COMMONS_OPENS) + entry; }

/* Each process counts its own holds and attachments, so that one bit stands for all its opens of an entry or slot. */
bool xp_count_in(xp_domain *d, xp_counts *counts, uint32_t i, uint64_t *mask)
{
    pthread_mutex_lock(&d->mu);
    bool ok = xp_counts_reach(counts, i) && XP_LOAD(&d->left) == 0;
    if (ok && counts->at[i]++ == 0)
        xp_set(mask, d->member);
    d->uses += ok;
    pthread_mutex_unlock(&d->mu);
    return ok;
}

void xp_count_out(xp_domain *d, xp_counts *counts, uint32_t i, uint64_t *mask)
{
    pthread_mutex_lock(&d->mu);
    if (i < counts->length && counts->at[i]) {
        d->uses--;
        if (--counts->at[i] == 0)
            xp_clear(mask, d->member);
    }
    pthread_mutex_unlock(&d->mu);
}

bool xp_hold(xp_domain *d, uint32_t entry)
{
    uint32_t *used = &((xp_commons *)d->base)->entries_used, old = XP_LOAD(used);
    for (int i = 0; i < XP_TRIES && old <= entry && !XP_CAS(used, &old, entry + 1); i++)
        ;
    return xp_count_in(d, &d->holds, entry, holders_at(d, entry));
}

void xp_drop(xp_domain *d, uint32_t entry) { xp_count_out(d, &d->holds, entry, holders_at(d, entry)); }

bool xp_leave_if_idle(xp_domain *d)
{
    pthread_mutex_lock(&d->mu);
    bool idle = d->uses == 0;
    if (idle) /* from here on xp_count_in counts nobody */
        __atomic_fetch_or(&d->left, XP_LEAVING, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&d->mu);
    if (idle)
        xp_leave(d);
    return idle;
}

bool xp_may_hold(const xp_domain *d, uint32_t entry)
{
    const uint64_t *mask = (const uint64_t *)(d->base + XP_COMMONS_HOLDERS) + (size_t)entry * XP_MASK_WORDS;
    uint64_t any = 0;
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        any |= XP_LOAD(&mask[i]);
    return any != 0;
}

uint32_t xp_holders(xp_domain *d, uint32_t entry, uint32_t *found)
{
    uint64_t *mask = holders_at(d, entry);
    uint32_t n = 0;
    pthread_mutex_lock(&d->mu);
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        XP_EACH_BIT(XP_LOAD(&mask[i]), bits) {
            uint32_t m = i * 64 + (uint32_t)__builtin_ctzll(bits);
            if (m == d->member)
                continue;
            xp_reap(d, m, false);
            if (xp_alive(d, m))
                found[n++] = m;
        }
    pthread_mutex_unlock(&d->mu);
    return n;
}

void xp_set_opens(xp_domain *d, uint32_t entry, int32_t count)
{
    XP_STORE(&opens_at(d, entry)->left, count);
    XP_STORE(&opens_at(d, entry)->renewed, 0);
}

bool xp_take_open(xp_domain *d, uint32_t entry)
{
    int32_t *opens = &opens_at(d, entry)->left, left = XP_LOAD(opens);
    for (int i = 0; i < XP_TRIES && left > 0; i++)
        if (XP_CAS(opens, &left, left - 1))
            return true;
    return false;
}

void xp_give_open(xp_domain *d, uint32_t entry)
{
    int32_t *opens = &opens_at(d, entry)->left, left = XP_LOAD(opens);
    for (int i = 0; i < XP_TRIES && left < INT32_MAX; i++)
        if (XP_CAS(opens, &left, left < 0 ? 1 : left + 1))
            return;
}

void xp_renew(xp_domain *d, uint32_t entry, uint64_t until)
{
    uint64_t *renewed = &opens_at(d, entry)->renewed, found = XP_LOAD(renewed);
    for (int i = 0; i < XP_TRIES && found < until; i++)
        if (XP_CAS(renewed, &found, until))
            break;
    xp_give_open(d, entry);
}

uint64_t xp_renewed(xp_domain *d, uint32_t entry) { return XP_LOAD(&opens_at(d, entry)->renewed); }

int32_t xp_opens_left(xp_domain *d, uint32_t entry)
{
    int32_t left = XP_LOAD(&opens_at(d, entry)->left);
    return left > 0 ? left : 0;
}

/* --- slots -------------------------------------------------------------------------------------------------------- */

/* True if no living member is attached; clears the bits of dead ones. With d->mu. */
static bool slot_free(xp_domain *d, uint32_t index)
{
    uint64_t *mask = xp_words_at(d, index)->attached;
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        XP_EACH_BIT(XP_LOAD(&mask[i]), bits) {
            uint32_t m = i * 64 + (uint32_t)__builtin_ctzll(bits);
            if (xp_alive(d, m))
                return false;
            xp_clear(mask, m);
        }
    return true;
}

/* The first released slot, of at most `most`, that nobody uses any more; XP_SLOTS if there is none. With d->mu. */
static uint32_t recycle(xp_domain *d, uint32_t most)
{
    for (uint32_t i = d->released_count < most ? d->released_count : most; i; i--) {
        uint32_t index = d->released[d->released_at];
        bool usable = slot_free(d, index);
        d->released_at = (d->released_at + 1) % XP_SLOTS;
        if (usable) {
            d->released_count--;
            return index;
        }
        d->released[(d->released_at + d->released_count - 1) % XP_SLOTS] = index;
    }
    return XP_SLOTS;
}

static uint32_t new_slot(xp_domain *d)
{
    uint32_t index = recycle(d, 16);
    if (index == XP_SLOTS && d->next_slot < XP_SLOTS) {
        index = d->next_slot;
        XP_STORE(&d->next_slot, index + 1);
        XP_STORE(&((xp_commons *)d->base)->slots_used, index + 1);
    }
    if (index == XP_SLOTS)
        index = recycle(d, XP_SLOTS);
    if (index == XP_SLOTS)
        return index;
    xp_words *w = xp_words_at(d, index);
    XP_STORE(&w->pending, 0);
    XP_STORE(&w->lost, 0);
    XP_STORE(&w->value, 0);
    XP_STORE(&w->roster, 0);
    XP_STORE(&w->waiters, 0);
    XP_STORE(&w->async_waiters, 0);
    XP_STORE(&w->cause, 0);
    XP_STORE(&w->blame, 0);
    XP_STORE(&w->device, 0);
    XP_STORE(&w->guards, 0);
    for (uint32_t i = 0; i < XP_FACTS; i++)
        XP_STORE(&w->facts[i], 0);
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++) {
        XP_STORE(&xp_roles_at(d, index)->signallers[i], 0);
        XP_STORE(&xp_roles_at(d, index)->candidates[i], 0);
    }
    d->slots_live[index / 64] |= 1ull << index % 64;
    return index;
}

uint32_t xp_new_slot(xp_domain *d)
{
    pthread_mutex_lock(&d->mu);
    uint32_t index = new_slot(d);
    pthread_mutex_unlock(&d->mu);
    return index;
}

bool xp_release_slot(xp_domain *d, uint32_t index)
{
    pthread_mutex_lock(&d->mu);
    bool live = index < XP_SLOTS && (d->slots_live[index / 64] >> index % 64 & 1);
    if (live) {
        d->slots_live[index / 64] &= ~(1ull << index % 64);
        d->released[(d->released_at + d->released_count++) % XP_SLOTS] = index;
    }
    pthread_mutex_unlock(&d->mu);
    return live;
}
