/* An entry of a peer's table against a handle, both of any content, and the files that a peer may give. What is taken
 * for live fits the handle, and what is mapped can be read to its last byte. */
#include "../c/support.h"
#include "../../../src/engine/exporter.h"

#include <fcntl.h>

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4
#endif

#define NBYTES 65536u
enum { FILES = 6 };

static char *table;
static int files[FILES];
static xp_exporter exporter;

static void set_up(void)
{
    table = mmap(NULL, XP_TABLE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(table != MAP_FAILED);
    exporter = (xp_exporter){.table = table, .pidfd = xp_pidfd_open(getpid())};
    int pipes[2];
    CHECK(exporter.pidfd >= 0 && pipe2(pipes, O_CLOEXEC) == 0);
    close(pipes[1]);
    files[0] = memfd(NBYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    files[1] = memfd(NBYTES, F_SEAL_GROW);
    files[2] = memfd(0, F_SEAL_SHRINK);
    files[3] = pipes[0];
    files[4] = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (files[4] >= 0) {
        ftruncate(files[4], 1 << 21);
        fcntl(files[4], F_ADD_SEALS, F_SEAL_SHRINK);
    }
    files[5] = -1;
}

static void follow(const xp_handle *h, const xp_entry *e)
{
    int fds[XP_ENTRY_FDS];
    xp_refusal why = {.code = XP_NOT_REFUSED};
    if (e->flags & XP_ENTRY_ON_DEMAND)
        return;
    if (e->flags & XP_ENTRY_MEMFD) {
        char *mapped = e->fd_count == 1 ? xp_fetch_mapping(&exporter, h, e, &why) : NULL;
        if (mapped) {
            CHECK(e->exposed_nbytes > 0 && e->exposed_nbytes <= NBYTES);
            CHECK(*(volatile char *)(mapped + e->exposed_nbytes - 1) == 0);
            munmap(mapped, e->exposed_nbytes);
        }
    } else if (xp_fetch_fds(&exporter, h, e, fds, &why)) {
        for (uint32_t i = 0; i < e->fd_count; i++)
            close(fds[i]);
    }
}

/* The first byte says which of the entry's fields are made to fit; the handle and the entry follow. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (table == NULL)
        set_up();
    struct {
        uint8_t fit[2];
        xp_handle h;
        xp_entry e;
    } __attribute__((packed)) in = {0};
    memcpy(&in, data, size < sizeof in ? size : sizeof in);
    xp_handle h;
    xp_entry e;
    memcpy(&h, &in.h, sizeof h);
    memcpy(&e, &in.e, sizeof e);
    unsigned fit = in.fit[0];
    if (fit & 1)
        h.entry %= XP_ENTRIES;
    if (fit & 2)
        h.generation = e.generation;
    if (fit & 4)
        h.kind = (uint16_t)(e.kind = h.kind);
    if (fit & 8)
        h.object = e.object;
    if (fit & 16)
        memcpy(h.nonce, e.nonce, sizeof h.nonce);
    if (fit & 32)
        h.flags = e.flags & XP_HANDLE_FLAGS;
    if (fit & 64) {
        e.exposed_nbytes %= 2 * NBYTES;
        e.nbytes = e.exposed_nbytes;
        h.nbytes = h.offset = 0;
    }
    if (fit & 128) {
        e.payload_nbytes %= sizeof e.payload + 1;
        e.fd_count %= XP_ENTRY_FDS + 1;
    }
    for (unsigned i = 0; i < XP_ENTRY_FDS; i++)
        e.fds[i] = files[(uint32_t)e.fds[i] % FILES];
    if (in.fit[1] & 1)
        e.inode = 0;
    xp_entry *theirs = (xp_entry *)(table + XP_TABLE_HEADER) + h.entry % XP_ENTRIES, copy;
    memcpy(theirs, &e, sizeof e);
    uint64_t *deadline = (uint64_t *)(table + XP_TABLE_DEADLINES) + h.entry % XP_ENTRIES;
    *deadline = in.fit[1] & 2 ? 0 : h.offset;
    CHECK(!xp_overdue(table, &h, e.offset, e.offset & 1) || (*deadline && h.entry < XP_ENTRIES));
    *deadline = 0;
    uint32_t reason;
    int state = xp_entry_state(table, &h, &reason), read = xp_read_entry(table, &h, &copy);
    if (state != XP_LIVE) {
        EQUAL(read, state);
    } else if (read == XP_LIVE) {
        CHECK(h.entry < XP_ENTRIES && h.generation != 0 && copy.generation == h.generation);
        CHECK(copy.kind == h.kind && copy.object == h.object && memcmp(copy.nonce, h.nonce, 16) == 0);
        CHECK(h.offset <= copy.nbytes && copy.nbytes - h.offset >= h.nbytes && copy.nbytes <= copy.exposed_nbytes);
        CHECK(copy.payload_nbytes <= sizeof copy.payload);
        CHECK(copy.fd_count <= XP_ENTRY_FDS || copy.flags & XP_ENTRY_ON_DEMAND);
        follow(&h, &copy);
    } else {
        EQUAL(read, XP_MISFIT);
    }
    memset(theirs, 0, sizeof *theirs);
    return 0;
}
