/* The groups of this process: which processes are members, which of them live, and what rings when one dies. */
#include "events.h"
#include "lock.h"
#include "loop.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LONGEST_NS 500000000u  /* a Unix signal just before the futex call does not interrupt it, so check from time to time */
#define POLLED_NS 100000000u
#define PAGE 4096u
#define ENDED_LOOKS 64u /* at how many places a home looks for one that has ended, before it takes a new one */

static xp_group *groups; /* xp_mu */

void xp_group_ref(xp_group *g) { __atomic_fetch_add(&g->refs, 1, __ATOMIC_RELAXED); }

void xp_group_unref(xp_group *g)
{
    if (__atomic_sub_fetch(&g->refs, 1, __ATOMIC_ACQ_REL))
        return;
    free(g->own);
    free(g);
}

/* --- joining and leaving ------------------------------------------------------------------------------------------ */

static uint64_t words_at(uint32_t members, uint32_t places)
{
    uint64_t end = sizeof(xp_group_head) + (uint64_t)members * sizeof(xp_group_member) + (uint64_t)places * sizeof(xp_place);
    return (end + PAGE - 1) / PAGE * PAGE;
}

uint64_t xp_group_nbytes(uint32_t members, uint32_t places, uint64_t words)
{
    if (members < 1 || members > XP_GROUP_MEMBERS || places < 1 || places > XP_HOME_PLACES)
        return 0;
    return words_at(members, places) + words;
}

static bool check_head(xp_group *g, xp_error *error)
{
    xp_group_head *head = xp_group_head_of(g);
    if (g->maker) {
        head->version = XP_GROUP_VERSION;
        head->kind = g->kind;
        head->nbytes = g->nbytes;
        head->members = g->count;
        head->places = g->places;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        memcpy(head->magic, XP_GROUP_MAGIC, sizeof head->magic);
    } else {
        if (memcmp(head->magic, XP_GROUP_MAGIC, sizeof head->magic) != 0 || head->version != XP_GROUP_VERSION)
            return xp_failed(error, 0, "this is not a group's memory of this version");
        if (head->kind != g->kind || head->nbytes != g->nbytes)
            return xp_failed(error, 0, "this is the memory of something else");
        g->count = XP_RELAXED(&head->members);
        g->places = XP_RELAXED(&head->places);
    }
    if (!xp_group_nbytes(g->count, g->places, 0) ||
        words_at(g->count, g->places) + (g->kind == XP_HOME ? (uint64_t)g->places * XP_PLACE_WORDS : XP_PLACE_WORDS) > g->nbytes)
        return xp_failed(error, 0, "the group's members and places do not fit in its memory");
    g->records = g->base + sizeof *head;
    g->words = g->base + words_at(g->count, g->places);
    g->listeners = &head->listeners;
    return true;
}

static uint32_t places_used(const xp_group *g)
{
    uint32_t used = XP_LOAD(&xp_group_head_of(g)->places_used);
    return used < g->places ? used : g->places;
}

/* Whether index `m` is free. A member that died still has its index while its device works. */
static bool vacant(xp_group *g, uint32_t m)
{
    int pid;
    pthread_mutex_lock(&g->mu);
    bool free = xp_life(&g->ms, m, &pid) >= XP_DEAD;
    pthread_mutex_unlock(&g->mu);
    return free;
}

/* Remove from the places what the last member with this index left, who died. */
static void sweep(xp_group *g, uint32_t m)
{
    for (uint32_t p = 0, n = places_used(g); p < n; p++) {
        xp_place *place = xp_place_at(g, p);
        if (g->kind == XP_CHANNEL_GROUP || XP_LOAD(&place->kind) == XP_PLACE_LOCK)
            xp_lock_sweep(xp_place_words(g, p), m);
        __atomic_fetch_and(&place->attached[m / 64], ~(1ull << m % 64), __ATOMIC_SEQ_CST);
    }
    xp_group_tell(g);
}

/* Try one index. Returns 0, EAGAIN to try another, or another errno. */
static int claim(xp_group *g, uint32_t m)
{
    if (!vacant(g, m))
        return EAGAIN;
    int rc = xp_lock_for_life(g->fd, XP_LIFE_BYTE + (int64_t)m);
    if (rc)
        return rc;
    /* Others join at the same time, so the index is looked at again, and swept, only once it is ours. */
    if (!vacant(g, m)) {
        xp_unlock_for_life(g->fd, XP_LIFE_BYTE + (int64_t)m);
        return EAGAIN;
    }
    xp_group_member *record = xp_group_member_at(g, m);
    if (XP_LOAD(&record->who.state))
        sweep(g, m);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    XP_STORE_RELAXED(&record->who.pid, (uint32_t)getpid());
    XP_STORE_RELAXED(&record->who.pid_namespace, xp_pid_namespace());
    XP_STORE_RELAXED(&record->who.since_ns, (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
    memset(record->handles, 0, sizeof record->handles);
    g->member = m;
    XP_STORE(&record->who.state, 1);
    return 0;
}

static xp_group *made(xp_group *g, int fd, xp_error *error)
{
    static uint64_t serials;
    struct stat found;
    if (fstat(fd, &found) < 0) {
        xp_failed(error, errno, "fstat");
        return NULL;
    }
    g->ino = found.st_ino;
    g->dev = found.st_dev;
    if (!check_head(g, error))
        return NULL;
    g->own = calloc(g->places, sizeof *g->own);
    xp_group *whole = g->own ? realloc(g, sizeof *g + g->count * sizeof *g->others) : NULL;
    if (whole == NULL) {
        xp_failed(error, ENOMEM, NULL);
        return NULL;
    }
    memset(whole->others, 0, whole->count * sizeof *whole->others);
    whole->seen = whole->others;
    whole->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
    pthread_mutex_init(&whole->mu, NULL);
    return whole;
}

static void unlist(xp_group *g)
{
    for (xp_group **p = &groups; *p; p = &(*p)->next)
        if (*p == g) {
            *p = g->next;
            break;
        }
}

xp_group *xp_group_open(int fd, char *base, uint64_t nbytes, uint32_t kind, int how, uint32_t members, uint32_t places,
                        xp_error *error)
{
    xp_group *g = calloc(1, sizeof *g), *whole;
    if (g == NULL) {
        xp_failed(error, ENOMEM, NULL);
        return NULL;
    }
    *g = (xp_group){.refs = 1, .born = XP_RELAXED(&xp_fork_count), .fd = fd, .count = members, .ready = XP_READY_GROUP, .record_nbytes = sizeof(xp_group_member), .kind = kind, .places = places,
                    .member = XP_GROUP_NOBODY, .maker = how == XP_GROUP_MAKE, .base = base, .nbytes = nbytes};
    if (nbytes < sizeof(xp_group_head)) {
        xp_failed(error, 0, "the group's memory is too small");
        whole = NULL;
    } else {
        whole = made(g, fd, error);
    }
    if (whole == NULL) {
        free(g->own);
        free(g);
        return NULL;
    }
    g = whole;
    if (how == XP_GROUP_LOOK)
        return g;
    int rc = EAGAIN;
    pthread_mutex_lock(&xp_mu);
    for (xp_group *o = groups; o && rc == EAGAIN; o = o->next)
        if (o->ino == g->ino && o->dev == g->dev)
            rc = EEXIST; /* a process is a member once: two memberships would hold one another's lock */
    if (rc == EAGAIN) {
        g->next = groups;
        groups = g;
    }
    pthread_mutex_unlock(&xp_mu);
    for (uint32_t m = 0; m < g->count && rc == EAGAIN; m++)
        rc = claim(g, m);
    if (rc == 0)
        return g;
    pthread_mutex_lock(&xp_mu);
    unlist(g);
    pthread_mutex_unlock(&xp_mu);
    xp_failed(error, rc == EAGAIN ? ENOSPC : rc, "joining a group");
    xp_group_unref(g);
    return NULL;
}

void xp_group_leave(xp_group *g)
{
    if (g->born != XP_RELAXED(&xp_fork_count))
        return; /* the fork handler has closed everything */
    pthread_mutex_lock(&xp_mu);
    unlist(g);
    pthread_mutex_unlock(&xp_mu);
    bool ours = g->member != XP_GROUP_NOBODY && !XP_LOAD(&g->gone) && xp_group_stands(g);
    if (ours)
        for (uint32_t p = 0, n = places_used(g); p < n; p++)
            xp_place_detach(g, p);
    pthread_mutex_lock(&g->mu);
    XP_STORE(&g->gone, 1);
    if (g->fd >= 0) {
        xp_unwatch_all(&g->ms);
        if (ours) {
            XP_STORE(&xp_group_member_at(g, g->member)->who.state, 0);
            xp_unlock_for_life(g->fd, XP_LIFE_BYTE + (int64_t)g->member);
        }
        g->fd = -1;
    }
    pthread_mutex_unlock(&g->mu);
}

bool xp_group_stands(xp_group *g)
{
    struct stat found;
    if (g->fd >= 0 && fstat(g->fd, &found) == 0 && found.st_ino == g->ino && found.st_dev == g->dev)
        return true;
    XP_STORE(&g->gone, 1);
    return false;
}

const char *xp_group_wrong(xp_group *g)
{
    if (xp_group_usable(g))
        return NULL;
    return g->born != XP_RELAXED(&xp_fork_count) ? "it is from before a fork" : g->fd < 0 ? XP_LEFT_TEXT : XP_ROBBED_TEXT;
}

/* --- places ------------------------------------------------------------------------------------------------------- */

static void set_attached(xp_group *g, xp_place *place, bool on)
{
    uint64_t bit = 1ull << g->member % 64, *word = &place->attached[g->member / 64];
    if (on)
        __atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST);
    else
        __atomic_fetch_and(word, ~bit, __ATOMIC_SEQ_CST);
}

/* Whether another member that lives has it open. Bits of the dead stay until their index is used again: clearing one here
 * could meet its next user. With g->mu. */
static bool others(xp_group *g, const xp_place *place)
{
    int pid;
    for (uint32_t i = 0; i < XP_GROUP_MASK; i++)
        for (uint64_t bits = XP_LOAD(&place->attached[i]); bits; bits &= bits - 1) {
            uint32_t m = i * 64 + (uint32_t)__builtin_ctzll(bits);
            if (m != g->member && m < g->count && xp_life(&g->ms, m, &pid) == XP_LIVING)
                return true;
        }
    return false;
}

/* A passing bit of a process that comes too late does no harm there: it clears that. */
static uint32_t free_place(xp_group *g)
{
    uint32_t used = places_used(g), looks = used < g->places && used > ENDED_LOOKS ? ENDED_LOOKS : used;
    for (uint32_t i = 0; i < looks; i++) {
        uint32_t p = g->next_place < used ? g->next_place : 0;
        g->next_place = p + 1;
        if (!(XP_LOAD(&xp_place_at(g, p)->generation) & 1))
            return p;
    }
    if (used < g->places)
        XP_STORE(&xp_group_head_of(g)->places_used, used + 1);
    return used < g->places ? used : XP_GROUP_NOBODY;
}

uint32_t xp_place_begin(xp_group *g, uint32_t kind, uint64_t *generation)
{
    pthread_mutex_lock(&g->mu);
    uint32_t p = g->maker ? free_place(g) : XP_GROUP_NOBODY; /* only one process uses places again */
    if (p != XP_GROUP_NOBODY) {
        xp_place *place = xp_place_at(g, p);
        if (g->kind == XP_HOME)
            memset(xp_place_words(g, p), 0, XP_PLACE_WORDS);
        XP_STORE(&place->kind, kind);
        set_attached(g, place, true);
        *generation = XP_LOAD(&place->generation) + 1;
        XP_STORE(&place->generation, *generation);
    }
    pthread_mutex_unlock(&g->mu);
    return p;
}

void xp_place_attach(xp_group *g, uint32_t p)
{
    pthread_mutex_lock(&g->mu);
    set_attached(g, xp_place_at(g, p), true);
    pthread_mutex_unlock(&g->mu);
}

int xp_place_state(xp_group *g, uint32_t p, uint64_t generation, uint32_t kind)
{
    const xp_place *place = xp_place_at(g, p);
    pthread_mutex_lock(&g->mu);
    bool stands = generation & 1 && XP_LOAD(&place->generation) == generation && XP_LOAD(&place->kind) == kind;
    int state = !stands ? XP_PLACE_OVER : others(g, place) ? XP_PLACE_SHARED : XP_PLACE_ALONE;
    pthread_mutex_unlock(&g->mu);
    return state;
}

bool xp_place_end(xp_group *g, uint32_t p, uint64_t generation)
{
    xp_place *place = xp_place_at(g, p);
    pthread_mutex_lock(&g->mu);
    bool over = !others(g, place);
    if (over) {
        XP_CAS(&place->generation, &generation, generation + 1);
        set_attached(g, place, false);
    }
    pthread_mutex_unlock(&g->mu);
    return over;
}

void xp_place_detach(xp_group *g, uint32_t p)
{
    pthread_mutex_lock(&g->mu);
    set_attached(g, xp_place_at(g, p), false);
    pthread_mutex_unlock(&g->mu);
}

void xp_place_count(xp_group *g, uint32_t p, int more)
{
    __atomic_fetch_add(&g->own[p].objects, (uint32_t)more, __ATOMIC_RELAXED);
}

/* --- members ------------------------------------------------------------------------------------------------------ */

static int life(xp_group *g, uint32_t m, int *pid)
{
    pthread_mutex_lock(&g->mu);
    int found = xp_life(&g->ms, m, pid);
    pthread_mutex_unlock(&g->mu);
    return found;
}

bool xp_group_is_gone(xp_group *g, uint32_t m)
{
    int pid;
    return life(g, m, &pid) != XP_LIVING;
}

bool xp_group_is_dead(xp_group *g, uint32_t m)
{
    int pid;
    return life(g, m, &pid) >= XP_DEAD;
}

int xp_group_pid(xp_group *g, uint32_t m)
{
    int pid;
    return life(g, m, &pid) == XP_LIVING ? pid : -1;
}

/* --- watching ----------------------------------------------------------------------------------------------------- */

int xp_group_watch(xp_group *g, uint32_t m)
{
    int pid;
    xp_loop_start(); /* if no thread can be started, members are polled */
    pthread_mutex_lock(&g->mu);
    /* A lock may be released although the process goes on, as by an exec, so it is looked at even if the process is watched. */
    int how = xp_life(&g->ms, m, &pid) == XP_LIVING ? xp_watch_member(&g->ms, m) : XP_GONE;
    pthread_mutex_unlock(&g->mu);
    return how;
}

/* Wake those who wait for what the dead member has. With g->mu. */
static void tell_of(xp_group *g, uint32_t m)
{
    for (uint32_t p = 0, n = g->kind == XP_HOME ? places_used(g) : 0; p < n; p++)
        if (XP_RELAXED(&xp_place_at(g, p)->kind) == XP_PLACE_LOCK && xp_lock_names(xp_place_words(g, p), m))
            xp_ring_always(&((xp_lock_words *)xp_place_words(g, p))->bell);
    xp_ring_all(g);
}

void xp_group_ready(uint64_t serial, uint32_t m)
{
    pthread_mutex_lock(&xp_mu);
    xp_group *g = groups;
    while (g && g->serial != serial)
        g = g->next;
    if (g)
        xp_group_ref(g);
    pthread_mutex_unlock(&xp_mu);
    if (g == NULL)
        return;
    pthread_mutex_lock(&g->mu);
    if (m < g->count && xp_watched_ends(&g->ms, m)) {
        xp_unwatch(&g->ms, m);
        g->seen[m].until = 0; /* it is not dying any more */
    }
    if (g->fd >= 0)
        tell_of(g, m);
    pthread_mutex_unlock(&g->mu);
    xp_group_unref(g);
}

void xp_groups_end(void)
{
    for (xp_group *g = groups; g; g = g->next) {
        pthread_mutex_lock(&g->mu);
        xp_unwatch_all(&g->ms);
        pthread_mutex_unlock(&g->mu);
    }
}

void xp_groups_forked(void)
{
    for (xp_group *g = groups; g; g = g->next) {
        xp_membership_forked(&g->ms); /* the memory's owner closes its fd */
    }
    groups = NULL;
}

/* --- bells -------------------------------------------------------------------------------------------------------- */

void xp_group_tell(xp_group *g)
{
    static const struct timespec now[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    if (XP_LOAD(g->listeners) && XP_EXCHANGE(g->listeners, 0))
        futimens(g->fd, now); /* inotify reports IN_MODIFY; of writes to a memfd it does not, since Linux 6.14 */
}

void xp_ring_all(xp_group *g)
{
    for (int i = 0; i < 2 && g->bells[i]; i++)
        xp_ring_always(g->bells[i]);
    xp_group_tell(g);
}

int xp_bell_sleep(xp_group *g, xp_bell *bell, uint32_t seq, uint64_t end, int watch)
{
    uint64_t now = xp_now(), most = watch == XP_POLLED ? POLLED_NS : LONGEST_NS;
    if (now >= end || !xp_group_usable(g))
        return ETIMEDOUT;
    int rc = xp_futex_wait(&bell->seq, seq, end - now < most ? end - now : most);
    if (rc == ETIMEDOUT)
        xp_group_stands(g);
    return rc;
}
