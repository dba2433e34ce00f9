/* The memory that commands may use, as far as it is known without Python: memory that functions of the library
 * returned, and memory that belongs to nobody. */
#include "parts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t begin, end;
    uint16_t backend, device;
    bool writable;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range *ranges; /* by their begins */
static size_t count, room;

/* Return how many begin at or before an address. Called with the lock. */
static size_t up_to(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Replace a range that began there. Without memory for it, Python handles the range. */
XP_EXPORT void xpushare_ur_range(uint64_t begin, uint64_t nbytes, uint16_t backend, uint16_t device, bool writable)
{
    pthread_mutex_lock(&lock);
    size_t at = up_to(begin);
    bool there = at && ranges[at - 1].begin == begin;
    if (!there && count == room) {
        size_t more = room ? 2 * room : 64;
        range *grown = realloc(ranges, more * sizeof *grown);
        if (!grown) {
            pthread_mutex_unlock(&lock);
            return;
        }
        ranges = grown;
        room = more;
    }
    if (there)
        at--;
    else
        memmove(ranges + at + 1, ranges + at, (count++ - at) * sizeof *ranges);
    ranges[at] = (range){begin, begin + nbytes, backend, device, writable};
    pthread_mutex_unlock(&lock);
}

XP_EXPORT void xpushare_ur_no_range(uint64_t begin)
{
    pthread_mutex_lock(&lock);
    size_t at = up_to(begin);
    if (at && ranges[at - 1].begin == begin) {
        memmove(ranges + at - 1, ranges + at, (count - at) * sizeof *ranges);
        count--;
    }
    pthread_mutex_unlock(&lock);
}

/* Memory of this package that is not listed is Python's business. */
static bool is_ordinary(uint64_t address, uint64_t nbytes, bool write)
{
    bool ours;
    return xp_engine.mapped(address, nbytes, &ours) >= (write ? 2 : 1) && !ours;
}

/* Called with the lock. Return the range that contains the address, or NULL. */
static const range *range_at(uint64_t address)
{
    size_t at = up_to(address);
    return at && address < ranges[at - 1].end ? &ranges[at - 1] : NULL;
}

void xp_range_of(uint64_t address, uint64_t *begin, uint64_t *end)
{
    pthread_mutex_lock(&lock);
    const range *found = range_at(address);
    *begin = found ? found->begin : address;
    *end = found ? found->end : address + 1;
    pthread_mutex_unlock(&lock);
}

int xp_lies(uint32_t device, uint64_t address)
{
    pthread_mutex_lock(&lock);
    const range *found = range_at(address);
    int lies = !found ? XP_ORDINARY : found->device == device ? XP_HERE : XP_ELSEWHERE;
    pthread_mutex_unlock(&lock);
    return lies;
}

bool xp_reaches(uint32_t backend, uint64_t address, uint64_t nbytes, uint64_t times, int use)
{
    if (__builtin_mul_overflow(nbytes, times, &nbytes))
        return false;
    pthread_mutex_lock(&lock);
    const range *found = range_at(address);
    bool good = found && nbytes <= found->end - address && found->backend == backend &&
                (found->writable || use != XP_WRITES);
    pthread_mutex_unlock(&lock);
    return good || (!found && use != XP_HINTS && is_ordinary(address, nbytes, use == XP_WRITES));
}
