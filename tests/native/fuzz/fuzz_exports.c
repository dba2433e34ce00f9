/* A commons as hostile peers may leave it (who holds, uses and opens which entry), between any steps of an exporter. Each
 * live export keeps an entry and a generation of its own, whatever peers write, and no step takes long. */
#include "../c/exporting.h"

#include <time.h>

#define EXPORTS 8
#define MOST_CPU_NS 300000000u

static xp_domain *domain;
static xp_exports *table;
static xp_key key;
static xp_template memory;

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

/* A word of a mask of a low entry: holders, or users. */
static uint64_t *mask_word(input *in, size_t masks)
{
    uint64_t entry = take(in, 1) % (2 * EXPORTS), word = take(in, 1) % XP_MASK_WORDS;
    return (uint64_t *)(domain->base + masks) + entry * XP_MASK_WORDS + word;
}

static void scribble(input *in)
{
    xp_commons *c = (xp_commons *)domain->base;
    xp_opens *opens = xp_opens_at(domain, (uint32_t)take(in, 1) % (2 * EXPORTS));
    xp_member *m = xp_member_at(domain, 1 + (uint32_t)take(in, 1));
    switch (take(in, 1) % 9) {
    case 0: XP_STORE(mask_word(in, XP_COMMONS_HOLDERS), take(in, 8)); break;
    case 1: XP_STORE(mask_word(in, XP_COMMONS_USERS), take(in, 8)); break;
    case 2: XP_STORE(&c->users_used, (uint32_t)take(in, 4)); break;
    case 3: XP_STORE(&c->entries_used, (uint32_t)take(in, 4)); break;
    case 4: XP_STORE(&opens->left, (int32_t)take(in, 4)); break;
    case 5: XP_STORE(&opens->marks, (uint32_t)take(in, 1) & 3); break;
    case 6: XP_STORE(&opens->renewed, take(in, 8)); break;
    case 7:
        XP_STORE(&m->state, (uint32_t)take(in, 1) % 3);
        XP_STORE(&m->pid, (uint32_t)take(in, 4));
        XP_STORE(&m->pid_namespace, take(in, 1) & 1 ? xp_pid_namespace() : 0);
        break;
    case 8: XP_STORE(&c->slots_used, (uint32_t)take(in, 4)); break;
    }
}

typedef struct {
    xp_export e;
    xp_handle h;
    bool published, ended;
} one;

static void end_one(one *o, xp_exposure *x)
{
    int code = o->published && !o->ended ? xp_export_end(table, &o->e, XP_REASON_PUT) : XP_EXPORT_GOOD;
    CHECK(code == XP_EXPORT_GOOD || (code == XP_EXPORT_LINGERS && o->e.foreign));
    o->ended = true;
    if (o->published)
        CHECK(xp_export_release(table, &o->e, x));
    *o = (one){.published = false};
}

static void start_one(one *o, input *in)
{
    xp_export_error error;
    unsigned how = (unsigned)take(in, 1);
    *o = (one){.e = {.template = &memory, .offset = how, .nbytes = 100, .foreign = how & 1,
                     .flags = how & 2 ? XP_ENTRY_PICKLED : 0}};
    bool reserved = xp_export_reserve(table, &key, &o->e, how & 4 ? (int)(how >> 4) : -1, how & 8 ? 1 : 0, how & 128, &o->h, &error);
    CHECK(reserved || error.code == XP_EXPORT_WOULD_BLOCK || error.code == XP_EXPORT_TABLE_FULL);
    if (reserved && (how & 64)) {
        xp_export_cancel(table, &o->e);
        reserved = false;
    }
    if (reserved)
        xp_export_publish(table, &o->e);
    o->published = reserved;
}

static void step(one *all, xp_exposure *x, input *in)
{
    uint64_t until = 5;
    one *o = &all[take(in, 1) % EXPORTS];
    switch (take(in, 1) % 8) {
    case 0: case 1:
        if (o->published)
            end_one(o, take(in, 1) & 1 ? x : NULL);
        else
            start_one(o, in);
        break;
    case 2:
        if (o->published && !o->ended)
            EQUAL(xp_export_allow_open(table, &o->h, take(in, 1) & 1 ? &until : NULL), XP_EXPORT_GOOD);
        break;
    case 3: xp_exposure_state(x); break;
    case 4:
        if (o->published && !o->ended)
            EQUAL(xp_export_set_deadline(table, &o->e, take(in, 8)), XP_EXPORT_GOOD);
        break;
    default: scribble(in); break;
    }
}

static void check_exports(const one *all)
{
    xp_export *found[EXPORTS];
    xp_entry seen;
    uint32_t live = 0, n = xp_exports_list(table, found, EXPORTS);
    for (int i = 0; i < EXPORTS; i++) {
        const one *o = &all[i];
        if (!o->published || o->ended)
            continue;
        live++;
        CHECK(xp_export_find(table, &o->h) == &o->e);
        EQUAL(xp_read_entry(table->base, &o->h, &seen), XP_LIVE);
        for (int k = 0; k < i; k++)
            CHECK(!all[k].published || (all[k].e.entry != o->e.entry && all[k].e.generation != o->e.generation));
    }
    CHECK(n == live && table->live == live && table->count <= table->used);
    for (uint32_t i = 1; i < n; i++)
        CHECK(found[i - 1]->generation < found[i]->generation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (domain == NULL) {
        xp_engine_init();
        domain = new_commons();
        table = new_exports(domain);
        xp_make_key(&key, "key", 3);
        memory = memory_template(table, memfd(BLOCK, F_SEAL_SHRINK | F_SEAL_GROW), test_names, 5000, 0);
    }
    input in = {data, size};
    static one all[EXPORTS];
    xp_exposure x;
    xp_exposure_begin(&x);
    for (int i = 0; i < 64 && in.left; i++) {
        uint64_t begin = cpu_now();
        step(all, &x, &in);
        check_exports(all);
        CHECK(cpu_now() - begin < MOST_CPU_NS);
    }
    for (int i = 0; i < EXPORTS; i++)
        end_one(&all[i], NULL);
    xp_exposure_end(&x);
    EQUAL(table->count, table->used); /* no entry is lost */
    memset(domain->base + XP_COMMONS_HOLDERS, 0, 2 * EXPORTS * (XP_MEMBERS / 8));
    memset(domain->base + XP_COMMONS_USERS, 0, 2 * EXPORTS * (XP_MEMBERS / 8));
    memset(domain->base + XP_COMMONS_OPENS, 0, 2 * EXPORTS * sizeof(xp_opens));
    for (uint32_t m = 1; m < 258; m++)
        XP_STORE(&xp_member_at(domain, m)->state, 0);
    return 0;
}
