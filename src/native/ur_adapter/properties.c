/* Properties that a handle keeps as long as it lives: Python's first answer is repeated without Python. */
#include "parts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct xp_property {
    struct xp_property *next;
    const xp_box *of;
    uint32_t kind, query; /* the kind that the function asks about */
    size_t nbytes;
    char value[];
} xp_property;

#define BUCKETS 1024

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static xp_property *buckets[BUCKETS];

/* The properties of a handle are stored together, and removed together: a device has about 160. */
static xp_property **bucket_of(const xp_box *box) { return &buckets[(uintptr_t)box / sizeof *box % BUCKETS]; }

static const xp_property *find(const xp_box *box, uint32_t kind, uint32_t query)
{
    const xp_property *each = *bucket_of(box);
    while (each && (each->of != box || each->query != query || each->kind != kind))
        each = each->next;
    return each;
}

bool xp_give(const uint64_t *words, const void *value, size_t nbytes)
{
    size_t room = words[2], *written = (size_t *)words[4];
    void *to = (void *)words[3];
    if (to ? room < nbytes : room || !written)
        return false;
    if (to)
        memcpy(to, value, nbytes);
    if (written)
        *written = nbytes;
    return true;
}

bool xp_property_of(const xp_box *box, unsigned kind, const uint64_t *words)
{
    pthread_mutex_lock(&lock);
    const xp_property *found = find(box, kind, (uint32_t)words[1]);
    bool good = found && xp_give(words, found->value, found->nbytes);
    pthread_mutex_unlock(&lock);
    return good;
}

void xp_forget(const xp_box *box)
{
    pthread_mutex_lock(&lock);
    for (xp_property **at = bucket_of(box), *each; (each = *at);) {
        if (each->of == box) {
            *at = each->next;
            free(each);
        } else {
            at = &each->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

XP_EXPORT void xpushare_ur_forget(const xp_box *box) { xp_forget(box); }

XP_EXPORT void xpushare_ur_remember(const xp_box *box, uint32_t kind, uint32_t query, const char *value, size_t nbytes)
{
    xp_property *made = malloc(sizeof *made + nbytes);
    if (!made)
        return;
    *made = (xp_property){.of = box, .kind = kind, .query = query, .nbytes = nbytes};
    memcpy(made->value, value, nbytes);
    pthread_mutex_lock(&lock);
    bool known = find(box, kind, query);
    if (!known) {
        made->next = *bucket_of(box);
        *bucket_of(box) = made;
    }
    pthread_mutex_unlock(&lock);
    if (known)
        free(made);
}
