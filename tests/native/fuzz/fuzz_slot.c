/* A slot as a hostile peer may leave it: any words, between any steps of ours. Nothing may crash, or take long. */
#include "../c/support.h"

#include <time.h>

#define MOST_CPU_NS 300000000u /* a compare-and-swap that a peer disturbs is tried XP_TRIES times */

static xp_domain *domain;
static uint32_t slot_index;

static uint64_t cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

typedef struct {
    const uint8_t *at;
    size_t left;
} input;

static uint64_t take(input *in, size_t nbytes)
{
    uint64_t value = 0;
    nbytes = nbytes < in->left ? nbytes : in->left;
    memcpy(&value, in->at, nbytes);
    in->at += nbytes;
    in->left -= nbytes;
    return value;
}

/* Small, near a limit of the protocol, or anything. */
static uint64_t number(input *in)
{
    static const uint64_t edges[] = {0, 1ull << 20, 1ull << 21, XP_POINT_MAX, 1ull << 44, 1ull << 63, UINT64_MAX};
    uint64_t how = take(in, 1);
    if (how < 64)
        return how;
    if (how < 192)
        return edges[how % 7] + (uint64_t)(int64_t)(int8_t)take(in, 1);
    return take(in, 8);
}

static void check_view(const xp_words *w, uint64_t point)
{
    xp_view v;
    xp_read(w, &v);
    CHECK(v.effective >= v.hi && v.effective >= v.lo && v.effective <= 1ull << 44 && v.lo <= v.hi);
    int state = xp_state(&v, point);
    CHECK(state == XP_PENDING || state == XP_DONE || state == XP_LOST);
    if (point > v.effective)
        EQUAL(state, XP_PENDING);
}

static void step(xp_slot *s, input *in)
{
    xp_words *w = s->w;
    xp_view v;
    uint64_t point = 0, after = 0, mask[XP_MASK_WORDS] = {0};
    bool host;
    int rc;
    uint32_t found[XP_MEMBERS];
    switch (take(in, 1) % 25) {
    case 0: XP_STORE(&w->value, number(in)); break;
    case 1: XP_STORE(&w->pending, number(in) << 21 | (take(in, 1) & 1) << 20 | (number(in) & 0xfffff)); break;
    case 2: XP_STORE(&w->lost, number(in) << 20 | (number(in) & 0xfffff)); break;
    case 3: XP_STORE(&w->roster, number(in)); break;
    case 4: XP_STORE(&w->device, (uint32_t)take(in, 1)); break;
    case 5: XP_STORE(&w->guards, (uint32_t)number(in)); break;
    case 6: XP_STORE(&w->facts[take(in, 1) % XP_FACTS], number(in) << 20 | (number(in) & 0xfffff)); break;
    case 7: XP_STORE(&w->attached[take(in, 1) % XP_MASK_WORDS], number(in)); break;
    case 8: ((uint8_t *)w)[take(in, 1)] ^= (uint8_t)take(in, 1); break;
    case 9:
        if (xp_signal(s, &point) == NULL)
            CHECK(point > 0 && point <= XP_POINT_MAX);
        break;
    case 10:
        if (xp_submit(s, 1 + take(in, 1) % 3, take(in, 1) & 1, &point, &after, &host) == NULL)
            CHECK(point > 0 && point <= XP_POINT_MAX && after < point);
        break;
    case 11: xp_complete(s, number(in) & XP_POINT_MAX); break;
    case 12: xp_lose(w, domain->bell, XP_CAUSE_QUEUE, 1, 0); break;
    case 13: xp_lose_late(s, number(in) & XP_POINT_MAX, XP_CAUSE_QUEUE, 1); break;
    case 14: xp_fail(s, XP_CAUSE_QUEUE); break;
    case 15: xp_finish(w); break;
    case 16: xp_full_state(s, number(in) & XP_POINT_MAX, take(in, 1) & 1); break;
    case 17: xp_sleep(s, number(in) & XP_POINT_MAX, 0, 0, &rc); break;
    case 18: xp_abandon(s, number(in) & XP_POINT_MAX); break;
    case 19: xp_guard(s, number(in) & XP_POINT_MAX, NULL, 0, false); break;
    case 20: xp_node_add(s, number(in) & XP_POINT_MAX, 7, XP_TOKEN, NULL); break;
    case 21:
        xp_lowest_owed(w, &v, (uint32_t)number(in));
        xp_owing(w, mask);
        break;
    case 22: { /* a member's record */
        xp_member *m = xp_member_at(domain, 1 + (uint32_t)take(in, 1));
        XP_STORE(&m->state, (uint32_t)take(in, 1) & 1);
        XP_STORE(&m->pid, (uint32_t)number(in));
        XP_STORE(&m->pid_namespace, number(in));
        break;
    }
    case 24: XP_STORE((uint64_t *)s->roles + take(in, 1) % (2 * XP_MASK_WORDS), number(in)); break;
    case 23:
        xp_reap_all(domain);
        xp_holders(domain, (uint32_t)take(in, 1), found);
        break;
    }
    check_view(w, number(in) & XP_POINT_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (domain == NULL) {
        xp_engine_init();
        domain = new_commons();
        slot_index = xp_new_slot(domain);
    }
    input in = {data, size};
    xp_slot *s = attach(domain, slot_index);
    for (int i = 0; i < 64 && in.left; i++) {
        uint64_t begin = cpu_now();
        step(s, &in);
        CHECK(cpu_now() - begin < MOST_CPU_NS);
    }
    detach(s);
    for (xp_node *node = xp_due(), *next; node; node = next) {
        next = node->next;
        free(node);
    }
    uint64_t *words = (uint64_t *)xp_words_at(domain, slot_index);
    for (size_t i = 0; i < sizeof(xp_words) / 8; i++)
        XP_STORE(&words[i], 0);
    words = (uint64_t *)xp_roles_at(domain, slot_index);
    for (size_t i = 0; i < sizeof(xp_roles) / 8; i++)
        XP_STORE(&words[i], 0);
    for (uint32_t m = 1; m < 257; m++)
        XP_STORE(&xp_member_at(domain, m)->state, 0);
    return 0;
}
