/* SYCL's `handler::fill` is a template, so the program's compiler compiles it. On Level Zero it asks for a kernel of the
 * program's, and a compiler without device code, such as g++, has none: the program ends by an assertion of that template,
 * or crashes in libsycl, before anybody asks this library. On any other backend it asks for a fill. All of that hangs on
 * `handler::getDeviceBackend`, which only `fill` calls. So once a program has a queue of Level Zero here, its calls of that
 * function get another backend for an answer. They are bound at run time, through a word in the program's table. */
#include "parts.h"

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined __x86_64__
#define IS_BOUND(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#elif defined __aarch64__
#define IS_BOUND(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#else
#define IS_BOUND(type) false
#endif

static const char asked[] = "_ZNK4sycl3_V17handler16getDeviceBackendEv";

static char answer(const void *handler)
{
    (void)handler;
    return 1; /* sycl::backend::opencl */
}

typedef struct {
    const ElfW(Rela) *first;
    size_t nbytes;
} relocations;

/* What an object says of itself. */
typedef struct {
    const ElfW(Dyn) *dynamic;
    uintptr_t begin, end; /* of what is read-only again since its words were bound */
    const char *names;
    const ElfW(Sym) *symbols;
    relocations tables[2];
} object;

static uintptr_t page_of(uintptr_t address) { return address & -(uintptr_t)sysconf(_SC_PAGESIZE); }

static object object_of(const struct dl_phdr_info *info)
{
    object o = {0};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_DYNAMIC)
            o.dynamic = (const ElfW(Dyn) *)begin;
        if (part->p_type == PT_GNU_RELRO) {
            o.begin = page_of(begin);
            o.end = page_of(begin + part->p_memsz);
        }
    }
    for (const ElfW(Dyn) *each = o.dynamic; each && each->d_tag != DT_NULL; each++)
        switch (each->d_tag) {
        case DT_STRTAB: o.names = (const char *)each->d_un.d_ptr; break;
        case DT_SYMTAB: o.symbols = (const ElfW(Sym) *)each->d_un.d_ptr; break;
        case DT_JMPREL: o.tables[0].first = (const ElfW(Rela) *)each->d_un.d_ptr; break;
        case DT_PLTRELSZ: o.tables[0].nbytes = each->d_un.d_val; break;
        case DT_RELA: o.tables[1].first = (const ElfW(Rela) *)each->d_un.d_ptr; break;
        case DT_RELASZ: o.tables[1].nbytes = each->d_un.d_val; break;
        }
    return o;
}

static bool is_of_sycl(const object *o)
{
    bool needs = false;
    for (const ElfW(Dyn) *each = o->dynamic; o->names && o->symbols && each->d_tag != DT_NULL; each++)
        needs |= each->d_tag == DT_NEEDED && !strncmp(o->names + each->d_un.d_val, "libsycl.so", 10);
    return needs;
}

static void answer_here(uintptr_t *slot, const object *o)
{
    void *page = (void *)page_of((uintptr_t)slot);
    size_t nbytes = (size_t)sysconf(_SC_PAGESIZE);
    bool closed = (uintptr_t)slot >= o->begin && (uintptr_t)slot < o->end;
    if (*slot == (uintptr_t)answer || (closed && mprotect(page, nbytes, PROT_READ | PROT_WRITE)))
        return;
    __atomic_store_n(slot, (uintptr_t)answer, __ATOMIC_RELEASE);
    if (closed)
        mprotect(page, nbytes, PROT_READ);
}

typedef struct {
    unsigned long long before, now; /* how many objects were ever loaded */
} loads;

static int look(struct dl_phdr_info *info, size_t size, void *of)
{
    (void)size;
    loads *count = of;
    count->now = info->dlpi_adds;
    if (count->now == count->before)
        return 1;
    object o = object_of(info);
    if (!is_of_sycl(&o))
        return 0;
    for (const relocations *table = o.tables; table < o.tables + 2; table++)
        for (size_t i = 0; table->first && i < table->nbytes / sizeof *table->first; i++) {
            const ElfW(Rela) *each = &table->first[i];
            if (IS_BOUND(ELF64_R_TYPE(each->r_info)) &&
                !strcmp(o.names + o.symbols[ELF64_R_SYM(each->r_info)].st_name, asked))
                answer_here((uintptr_t *)(info->dlpi_addr + each->r_offset), &o);
        }
    return 0;
}

XP_EXPORT void xpushare_ur_fills(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static loads count;
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(look, &count);
    count.before = count.now;
    pthread_mutex_unlock(&lock);
}
