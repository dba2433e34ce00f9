/* Freed host memory that is cached for its next allocation, and closed imports of it that are cached for the next
 * open: making and filling new pages takes several times as long as zeroing old ones. No fork happened since the
 * memory was mapped. Memory that nobody else could ever reach serves any allocation. Memory that was shared is
 * owned: it goes back only to the owner that cached it, which knows who may still have it. An import without a file
 * descriptor cannot be exported again. The warden gives cached memory back after a while, and when memory gets
 * scarce. Without a warden, nothing is cached. */
#include "events.h"
#include "loop.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 64u /* each may be a file descriptor */
#define MOST_BYTES (256ull << 20)
#define SHARE 8 /* cache at most this part of what is free */
#define LOOK_NS 1000000000u

typedef struct {
    char *base;
    uint64_t nbytes, until, number; /* another mapping may be made at the address once this one is gone */
    int fd;
    dev_t dev;
    ino_t ino;
    bool owned;
} kept;

unsigned xp_forks_begun;
uint64_t xp_kept_ns = 5000000000u;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* innermost */
static kept items[MOST];                                 /* the oldest first; protected by mu, like all that follow */
static unsigned count;
static uint64_t total, most, look_at, numbers;
static uint64_t due = XP_FOREVER; /* when the warden comes next */

/* --- how much is free --------------------------------------------------------------------------------------------- */

/* Read a file's content; an empty string if it cannot be read. */
static void read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
    text[n < 0 ? 0 : n] = 0;
    if (fd >= 0)
        close(fd);
}

/* Read the number after `name`, or the whole number if `name` is empty. XP_FOREVER for anything that is not a
 * number. */
static uint64_t number_in(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    char *end;
    if (at == NULL)
        return XP_FOREVER;
    uint64_t value = strtoull(at += strlen(name), &end, 10);
    return end == at ? XP_FOREVER : value;
}

/* The bytes that a control group has left: its limit minus its usage. */
static uint64_t left_in(const char *folder, const char *limit, const char *used)
{
    char path[512], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, limit);
    read_file(path, text, sizeof text);
    uint64_t all = number_in(text, "");
    snprintf(path, sizeof path, "%s/%s", folder, used);
    read_file(path, text, sizeof text);
    uint64_t now = number_in(text, "");
    return all == XP_FOREVER || now == XP_FOREVER ? XP_FOREVER : now < all ? all - now : 0;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The bytes that are still available, here and in the control groups above. */
static uint64_t room(void)
{
    char text[4096], folder[384];
    read_file("/proc/meminfo", text, sizeof text);
    uint64_t found = number_in(text, "MemAvailable:");
    found = found > XP_FOREVER / 1024 ? 0 : found * 1024; /* not known: keep nothing */
    found = least(found, left_in("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"));
    read_file("/proc/self/cgroup", text, sizeof text);
    char *group = strstr(text, "0::/");
    if (group == NULL)
        return found;
    group += 3;
    group[strcspn(group, "\n")] = 0;
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = 0;
        if (snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", group) < (int)sizeof folder)
            found = least(found, left_in(folder, "memory.max", "memory.current"));
    }
    return found;
}

/* --- what is kept ------------------------------------------------------------------------------------------------- */

/* Called with mu. Move the items from `first` to before `last` into `out`. */
static unsigned take_out(unsigned first, unsigned last, kept *out)
{
    unsigned n = last - first;
    memcpy(out, items + first, n * sizeof *items);
    memmove(items + first, items + last, (count - last) * sizeof *items);
    count -= n;
    for (unsigned i = 0; i < n; i++)
        total -= out[i].nbytes;
    return n;
}

/* Whether its number is still that of its file: somebody may have closed fds that they do not own. */
static bool stands(const kept *k)
{
    struct stat st;
    return k->fd < 0 || (fstat(k->fd, &st) == 0 && st.st_dev == k->dev && st.st_ino == k->ino);
}

static uint64_t give_back(kept *gone, unsigned n)
{
    uint64_t nbytes = 0;
    for (unsigned i = 0; i < n; i++) {
        munmap(gone[i].base, gone[i].nbytes);
        if (gone[i].fd >= 0 && stands(&gone[i]))
            close(gone[i].fd);
        nbytes += gone[i].nbytes;
    }
    return nbytes;
}

/* Called with mu. Return how many of the oldest items have to go, so that `more` bytes and `another` item fit. */
static unsigned too_many(uint64_t more, unsigned another)
{
    unsigned n = count + another > MOST ? count + another - MOST : 0;
    uint64_t rest = total;
    for (unsigned i = 0; i < n; i++)
        rest -= items[i].nbytes;
    while (n < count && rest + more > most)
        rest -= items[n++].nbytes;
    return n;
}

/* Called with mu, which is released in between. */
static void look_around(uint64_t now)
{
    if (now < look_at)
        return;
    look_at = now + LOOK_NS;
    pthread_mutex_unlock(&mu);
    uint64_t free = room();
    pthread_mutex_lock(&mu);
    most = least(MOST_BYTES, (free + total) / SHARE);
}

uint64_t xp_keep(char *base, uint64_t nbytes, int fd, unsigned forks, bool owned)
{
    kept gone[MOST], new = {.base = base, .nbytes = nbytes, .fd = fd, .owned = owned};
    struct stat st = {.st_dev = 0};
    if (!xp_loop_running() || nbytes > MOST_BYTES || (fd >= 0 && fstat(fd, &st) < 0))
        return 0;
    uint64_t now = xp_now();
    new.until = now + xp_kept_ns;
    new.dev = st.st_dev;
    new.ino = st.st_ino;
    pthread_mutex_lock(&mu);
    look_around(now);
    bool keep = nbytes <= most && forks == XP_RELAXED(&xp_forks_begun), early = due > new.until;
    unsigned n = keep ? take_out(0, too_many(nbytes, 1), gone) : 0;
    if (keep) {
        new.number = ++numbers;
        items[count++] = new;
        total += nbytes;
        due = least(due, new.until);
    }
    pthread_mutex_unlock(&mu);
    give_back(gone, n);
    if (keep && early)
        xp_loop_kick();
    return new.number;
}

/* Return whether memory that was taken out can be reused. If not, give it back. */
static bool usable(kept *found)
{
    if (stands(found))
        return true;
    give_back(found, 1);
    return false;
}

bool xp_take_kept(uint64_t nbytes, char **base, int *fd)
{
    kept found;
    unsigned n = 0;
    pthread_mutex_lock(&mu);
    for (unsigned i = count; i > 0 && n == 0; i--)
        if (!items[i - 1].owned && items[i - 1].nbytes == nbytes && items[i - 1].until > 0)
            n = take_out(i - 1, i, &found);
    pthread_mutex_unlock(&mu);
    if (n == 0 || !usable(&found))
        return false;
    memset(found.base, 0, nbytes);
    *base = found.base;
    *fd = found.fd;
    return true;
}

bool xp_take_owned(uint64_t number, char **base, uint64_t *nbytes, int *fd)
{
    kept found;
    unsigned n = 0;
    pthread_mutex_lock(&mu);
    for (unsigned i = count; i > 0 && n == 0; i--)
        if (items[i - 1].owned && items[i - 1].number == number)
            n = take_out(i - 1, i, &found);
    pthread_mutex_unlock(&mu);
    if (n == 0 || !usable(&found))
        return false;
    *base = found.base;
    *nbytes = found.nbytes;
    *fd = found.fd;
    return true;
}

uint64_t xp_trim(void)
{
    kept gone[MOST];
    pthread_mutex_lock(&mu);
    unsigned n = take_out(0, count, gone);
    pthread_mutex_unlock(&mu);
    return give_back(gone, n);
}

uint64_t xp_kept_nbytes(void)
{
    pthread_mutex_lock(&mu);
    uint64_t found = total;
    pthread_mutex_unlock(&mu);
    return found;
}

uint64_t xp_trim_old(uint64_t now)
{
    kept gone[MOST];
    pthread_mutex_lock(&mu);
    if (count == 0) {
        /* Items that were taken since the last check are soon cached again, so do not wake the warden each time. */
        due = due > now ? due : XP_FOREVER;
        uint64_t next = due;
        pthread_mutex_unlock(&mu);
        return next;
    }
    look_around(now);
    unsigned n = too_many(0, 0);
    while (n < count && items[n].until <= now)
        n++;
    n = take_out(0, n, gone);
    uint64_t next = due = count ? least(items[0].until, look_at) : XP_FOREVER;
    pthread_mutex_unlock(&mu);
    give_back(gone, n);
    return next;
}

/* --- fork --------------------------------------------------------------------------------------------------------- */

void xp_kept_fork_prepare(void)
{
    pthread_mutex_lock(&mu);
    XP_STORE(&xp_forks_begun, xp_forks_begun + 1); /* before there is a child that sees the mappings */
    for (unsigned i = 0; i < count; i++)
        items[i].until = 0; /* never used again */
}

void xp_kept_fork_parent(void) { pthread_mutex_unlock(&mu); }

void xp_kept_forked(void) /* with mu */
{
    kept gone[MOST];
    give_back(gone, take_out(0, count, gone));
}
