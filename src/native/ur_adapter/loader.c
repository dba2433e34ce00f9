/* Which build of the loader calls. Its tables grew while its version stayed the same, and SYCL's runtime is linked
 * with the loader. So a build is recognised by the names of Unified Runtime's functions in the calling library. A loader
 * that is a library of its own, and one with the tracing layer, name each function of each table. A static loader
 * without that layer names only the functions that fill its tables. */
#include "parts.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#define XP_MOST_NAMES 1024

typedef struct {
    const char *code;
    const char *names[XP_MOST_NAMES];
    size_t count;
    bool found;
} xp_names;

static bool is_name(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

static bool has_prefix(const char *name, const char *prefix) { return !strncmp(name, prefix, strlen(prefix)); }

/* Functions that are in no table: the loader's own, and those that print. */
static bool in_tables(const char *name)
{
    return !has_prefix(name, "urPrint") && !has_prefix(name, "urLoader") && strcmp(name, "urDeviceGetSelected") != 0;
}

static void collect(xp_names *to, const char *begin, const char *end)
{
    for (const char *at = begin; (at = memmem(at, (size_t)(end - at), "\0ur", 3)); at += 3) {
        const char *name = at + 1, *last = name + 2;
        if (last >= end || *last < 'A' || *last > 'Z')
            continue;
        while (last < end && is_name(*last))
            last++;
        if (last < end && !*last && in_tables(name) && to->count < XP_MOST_NAMES)
            to->names[to->count++] = name;
    }
}

/* Collect the names from the read-only parts of the library that contains `code`. */
static int look(struct dl_phdr_info *info, size_t size, void *into)
{
    (void)size;
    xp_names *to = into;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const ElfW(Phdr) *part = &info->dlpi_phdr[i];
            const char *begin = (const char *)info->dlpi_addr + part->p_vaddr;
            if (part->p_type != PT_LOAD)
                continue;
            if (pass == 0)
                to->found |= to->code >= begin && to->code < begin + part->p_memsz;
            else if (to->found && (part->p_flags & (PF_R | PF_W)) == PF_R)
                collect(to, begin, begin + part->p_filesz);
        }
    return to->found;
}

static int compare(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    return hash;
}

static bool is_getter(const char *name)
{
    static const char end[] = "ProcAddrTable";
    size_t length = strlen(name);
    return has_prefix(name, "urGet") && length >= sizeof end && !strcmp(name + length - (sizeof end - 1), end);
}

void xp_fingerprints(const void *code, xp_fingerprint *functions, xp_fingerprint *getters)
{
    static xp_names names; /* only the start uses it, under its lock */
    names = (xp_names){.code = code};
    dl_iterate_phdr(look, &names);
    qsort(names.names, names.count, sizeof *names.names, compare);
    *functions = *getters = (xp_fingerprint){0};
    for (size_t i = 0; i < names.count; i++)
        if (i == 0 || strcmp(names.names[i], names.names[i - 1]) != 0) {
            xp_fingerprint *of = is_getter(names.names[i]) ? getters : functions;
            of->count++;
            of->sum += hash_of(names.names[i]);
        }
}
