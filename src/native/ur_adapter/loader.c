/* Which build of the loader calls: its tables grew while its version stayed the same, so it is told by what it exports. */
#include "adapter.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

static const void *at(const struct link_map *map, ElfW(Addr) address)
{
    return (const void *)(address < map->l_addr ? map->l_addr + address : address); /* ld.so relocates most of them */
}

/* The number of symbols: the last chain of the hash table ends with the last one. */
static size_t symbols_of(const uint32_t *hash)
{
    uint32_t buckets = hash[0], first = hash[1], bloom = hash[2], last = 0;
    const uint32_t *bucket = hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last)
            last = bucket[i];
    if (last < first)
        return first;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    return hash;
}

bool xp_exports(const void *code, unsigned *count, uint64_t *fingerprint, const char **name)
{
    Dl_info info;
    struct link_map *map = NULL;
    if (!dladdr1(code, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return false;
    const char *strings = NULL;
    const ElfW(Sym) *symbols = NULL;
    const uint32_t *hash = NULL;
    for (const ElfW(Dyn) *each = map->l_ld; each->d_tag != DT_NULL; each++) {
        if (each->d_tag == DT_STRTAB)
            strings = at(map, each->d_un.d_ptr);
        else if (each->d_tag == DT_SYMTAB)
            symbols = at(map, each->d_un.d_ptr);
        else if (each->d_tag == DT_GNU_HASH)
            hash = at(map, each->d_un.d_ptr);
    }
    *name = info.dli_fname;
    if (!strings || !symbols || !hash)
        return false;
    *count = 0;
    *fingerprint = 0;
    for (size_t i = 0, end = symbols_of(hash); i < end; i++) {
        const char *symbol = strings + symbols[i].st_name;
        if (symbols[i].st_shndx == SHN_UNDEF || symbol[0] != 'u' || symbol[1] != 'r' || symbol[2] < 'A' || symbol[2] > 'Z' ||
            !strncmp(symbol, "urPrint", 7))
            continue;
        ++*count;
        *fingerprint += hash_of(symbol);
    }
    return true;
}
