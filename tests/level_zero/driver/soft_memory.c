/* The software driver's memory: allocations, what is known about an address, IPC handles, external memory. */
#include "soft.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct pool { /* what small allocations share; gone with the last of them */
    struct pool *next;
    char *host;
    int fd, granules, live;
} pool;

int soft_fds;
static pool *pools;
static uint64_t ids;

static size_t up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

uint64_t soft_id(void)
{
    return __atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED);
}

/* --- fds ---------------------------------------------------------------------------------------------------------- */

static int counted(int fd)
{
    if (fd >= 0)
        __atomic_add_fetch(&soft_fds, 1, __ATOMIC_RELAXED);
    return fd;
}

int soft_memfd(size_t size)
{
    int fd = memfd_create("softze", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)size)) {
        close(fd);
        fd = -1;
    }
    return counted(fd);
}

int soft_dup(int fd)
{
    return counted(dup(fd));
}

int soft_fetch(int pid, int fd)
{
    if (pid == getpid())
        return soft_dup(fd);
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    if (process < 0)
        return -1;
    int got = (int)syscall(SYS_pidfd_getfd, process, fd, 0);
    close(process);
    return counted(got);
}

void soft_close(int fd)
{
    if (fd < 0)
        return;
    close(fd);
    __atomic_add_fetch(&soft_fds, -1, __ATOMIC_RELAXED);
}

ino_t soft_inode(int fd)
{
    struct stat status;
    return fstat(fd, &status) ? 0 : status.st_ino;
}

bool soft_same(int fd, ino_t inode)
{
    bool same = soft_inode(fd) == inode;
    if (!same)
        soft_violation("the driver's fd %d was closed by somebody else", fd);
    return same;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

void *soft_address(const memory *m)
{
    bool host = m->type == ZE_MEMORY_TYPE_HOST || m->type == ZE_MEMORY_TYPE_SHARED;
    return (void *)((uintptr_t)m->host + (host ? 0 : HIGH));
}

char *soft_host(const void *address)
{
    uintptr_t number = (uintptr_t)address;
    return (char *)(number >= HIGH ? number - HIGH : number);
}

memory *soft_find(const void *address)
{
    for (object *each = soft_objects(); each; each = each->next) {
        if (each->kind != MEMORY && each->kind != OPENED && each->kind != SYSTEM && each->kind != MAPPING)
            continue;
        memory *m = (memory *)each;
        uintptr_t begin = (uintptr_t)soft_address(m);
        if ((uintptr_t)address >= begin && (uintptr_t)address < begin + m->size)
            return m;
    }
    return NULL;
}

bool soft_reachable(const void *address, size_t size)
{
    const char *at = address, *end = at + size;
    soft_lock();
    while (at < end) { /* a range may consist of several mappings */
        memory *m = soft_find(at);
        if (!m)
            break;
        at = (const char *)soft_address(m) + m->size;
    }
    soft_unlock();
    return at >= end;
}

const void *soft_chain(const void *next, ze_structure_type_t type)
{
    for (const ze_base_desc_t *each = next; each; each = each->pNext)
        if (each->stype == type)
            return each;
    return NULL;
}

char *soft_place(size_t size, size_t alignment, int fd, size_t offset, int protection)
{
    if (alignment < GRANULE)
        alignment = GRANULE;
    size = up(size, GRANULE);
    char *room = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return NULL;
    char *at = (char *)up((uintptr_t)room, alignment);
    if (at > room)
        munmap(room, (size_t)(at - room));
    if (room + alignment > at)
        munmap(at + size, (size_t)(room + alignment - at));
    if (fd >= 0 && mmap(at, size, protection, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED) {
        munmap(at, size);
        return NULL;
    }
    return at;
}

/* --- allocations -------------------------------------------------------------------------------------------------- */

static memory *enter(enum kind kind, char *host, size_t size, int fd, size_t offset, ze_memory_type_t type,
                     ze_device_handle_t device)
{
    memory *m = soft_new(kind, sizeof *m);
    m->size = size;
    m->fd = fd;
    m->inode = soft_inode(fd);
    m->offset = offset;
    m->type = type;
    m->device = device;
    m->id = soft_id();
    m->host = host; /* last: soft_find sees it from here on */
    return m;
}

static ze_result_t allocate_small(size_t size, ze_device_handle_t device, void **out)
{
    int granules = (int)(up(size, GRANULE) / GRANULE);
    soft_lock();
    pool *p = pools;
    while (p && p->granules + granules > (int)(POOLED / GRANULE))
        p = p->next;
    if (!p) {
        p = calloc(1, sizeof *p);
        p->fd = soft_memfd(POOLED);
        p->host = p->fd < 0 ? NULL : soft_place(POOLED, POOLED, p->fd, 0, PROT_READ | PROT_WRITE);
        if (!p->host) {
            soft_close(p->fd);
            free(p);
            soft_unlock();
            return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
        }
        p->next = pools;
        pools = p;
    }
    size_t offset = (size_t)p->granules * GRANULE;
    p->granules += granules;
    ++p->live;
    memory *m = enter(MEMORY, p->host + offset, size, p->fd, offset, ZE_MEMORY_TYPE_DEVICE, device);
    m->pool = p;
    *out = soft_address(m);
    soft_unlock();
    return ZE_RESULT_SUCCESS;
}

static void free_small(pool *p) /* call it locked */
{
    if (--p->live)
        return;
    pool **at = &pools;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    munmap(p->host, POOLED);
    soft_close(p->fd);
    free(p);
}

static ze_result_t allocate(ze_context_handle_t context, const void *next, size_t size, size_t alignment,
                            ze_memory_type_t type, ze_device_handle_t device, void **out)
{
    const ze_external_memory_import_fd_t *imported = soft_chain(next, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD);
    bool exported = soft_chain(next, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC);
    if (!soft_live(context, CONTEXT))
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (!size || size > (size_t)1 << 40)
        return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    if (alignment & (alignment - 1))
        return ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT;
    if (type == ZE_MEMORY_TYPE_DEVICE && size < POOLED && alignment <= GRANULE && !imported && !exported)
        return allocate_small(size, device, out);
    int fd = imported ? soft_dup(imported->fd) : soft_memfd(up(size, GRANULE));
    if (fd < 0)
        return imported ? ZE_RESULT_ERROR_INVALID_ARGUMENT : ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    char *host = soft_place(size, alignment, fd, 0, PROT_READ | PROT_WRITE);
    if (!host) {
        soft_close(fd);
        return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    *out = soft_address(enter(MEMORY, host, size, fd, 0, type, device));
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeMemAllocDevice(ze_context_handle_t context, const ze_device_mem_alloc_desc_t *desc, size_t size,
                             size_t alignment, ze_device_handle_t device, void **out)
{
    ENTER();
    return allocate(context, desc->pNext, size, alignment, ZE_MEMORY_TYPE_DEVICE, device, out);
}

ze_result_t zeMemAllocHost(ze_context_handle_t context, const ze_host_mem_alloc_desc_t *desc, size_t size,
                           size_t alignment, void **out)
{
    ENTER();
    const ze_external_memmap_sysmem_ext_desc_t *system =
        soft_chain(desc->pNext, ZE_STRUCTURE_TYPE_EXTERNAL_MEMMAP_SYSMEM_EXT_DESC);
    if (!system || soft_old())
        return allocate(context, desc->pNext, size, alignment, ZE_MEMORY_TYPE_HOST, NULL, out);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if ((uintptr_t)system->pSystemMemory % page || system->size % page || system->size != size)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    soft_lock();
    bool taken = soft_find(system->pSystemMemory);
    if (!taken)
        enter(SYSTEM, system->pSystemMemory, size, -1, 0, ZE_MEMORY_TYPE_HOST, NULL);
    soft_unlock();
    if (taken)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    *out = system->pSystemMemory;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeMemAllocShared(ze_context_handle_t context, const ze_device_mem_alloc_desc_t *device_desc,
                             const ze_host_mem_alloc_desc_t *host_desc, size_t size, size_t alignment,
                             ze_device_handle_t device, void **out)
{
    ENTER();
    return allocate(context, device_desc->pNext, size, alignment, ZE_MEMORY_TYPE_SHARED, device, out);
}

static ze_result_t release(void *address, bool opened)
{
    soft_lock();
    memory *m = soft_find(address);
    if (!m || soft_address(m) != address || (m->head.kind == OPENED) != opened || m->head.kind == MAPPING) {
        soft_unlock();
        soft_violation("%p is no %s memory", address, opened ? "opened" : "allocated");
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    bool own = m->fd < 0 || soft_same(m->fd, m->inode);
    char *host = m->host;
    size_t size = m->size;
    int fd = m->fd;
    pool *shared = m->pool;
    soft_delete(m);
    if (shared)
        free_small(shared);
    else if (fd >= 0) {
        munmap(host, up(size, GRANULE));
        if (own)
            soft_close(fd);
    }
    soft_unlock();
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeMemFree(ze_context_handle_t context, void *address)
{
    ENTER();
    return release(address, false);
}

ze_result_t zeMemFreeExt(ze_context_handle_t context, const ze_memory_free_ext_desc_t *desc, void *address)
{
    ENTER();
    return release(address, false);
}

ze_result_t zeMemGetAllocProperties(ze_context_handle_t context, const void *address,
                                    ze_memory_allocation_properties_t *out, ze_device_handle_t *device)
{
    ENTER();
    soft_lock();
    memory *m = soft_find(address);
    out->type = m ? m->type : ZE_MEMORY_TYPE_UNKNOWN;
    out->id = m ? m->id : 0;
    out->pageSize = m ? GRANULE : 0;
    if (device)
        *device = m ? m->device : NULL;
    ze_external_memory_export_fd_t *fd = (void *)soft_chain(out->pNext, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD);
    if (fd && m)
        fd->fd = m->fd;
    soft_unlock();
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeMemGetAddressRange(ze_context_handle_t context, const void *address, void **base, size_t *size)
{
    ENTER();
    soft_lock();
    memory *m = soft_find(address);
    if (m && base)
        *base = soft_address(m);
    if (m && size)
        *size = m->size;
    soft_unlock();
    return m ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_UNKNOWN;
}

/* --- IPC handles -------------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(ipc_handle) <= sizeof(ze_ipc_mem_handle_t), "it lies in a handle of Level Zero's");

void soft_handle(void *out, const char *magic, int fd, uint64_t size, uint64_t offset, uint32_t type)
{
    ipc_handle made = {.fd = fd, .pid = soft_old() ? 0 : getpid(), .size = size, .offset = offset, .type = type};
    strcpy(made.magic, magic);
    memset(out, 0, sizeof(ze_ipc_mem_handle_t));
    memcpy(out, &made, sizeof made);
}

int soft_opened(const void *handle, const char *magic, ipc_handle *out)
{
    memcpy(out, handle, sizeof *out);
    /* A bare fd of an older driver was received by the program itself: it is this process's. */
    return strcmp(out->magic, magic) ? -1 : soft_fetch(out->pid ? out->pid : getpid(), out->fd);
}

ze_result_t zeMemGetIpcHandle(ze_context_handle_t context, const void *address, ze_ipc_mem_handle_t *out)
{
    ENTER();
    soft_lock();
    memory *m = soft_find(address);
    bool shareable = m && m->fd >= 0;
    if (shareable)
        soft_handle(out, "softze mem", m->fd, m->pool ? POOLED : m->size, m->offset, m->type);
    soft_unlock();
    return shareable ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

ze_result_t zeMemGetIpcHandleWithProperties(ze_context_handle_t context, const void *address, void *next,
                                            ze_ipc_mem_handle_t *out)
{
    ENTER();
    const ze_ipc_mem_handle_type_ext_desc_t *type = soft_chain(next, ZE_STRUCTURE_TYPE_IPC_MEM_HANDLE_TYPE_EXT_DESC);
    if (type && type->typeFlags & ZE_IPC_MEM_HANDLE_TYPE_FLAG_FABRIC_ACCESSIBLE)
        return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    return zeMemGetIpcHandle(context, address, out);
}

ze_result_t zeMemOpenIpcHandle(ze_context_handle_t context, ze_device_handle_t device, ze_ipc_mem_handle_t handle,
                               ze_ipc_memory_flags_t flags, void **out)
{
    ENTER();
    if (!soft_live(context, CONTEXT))
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    ipc_handle got;
    int fd = soft_opened(&handle, "softze mem", &got);
    if (fd < 0)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    char *host = soft_place(got.size, GRANULE, fd, 0, PROT_READ | PROT_WRITE);
    if (!host) {
        soft_close(fd);
        return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    /* Like Intel's: the address is inside the whole buffer, and a wrong offset is believed. */
    memory *m = enter(OPENED, host, got.size, fd, 0, got.type, device);
    *out = (char *)soft_address(m) + got.offset;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeMemCloseIpcHandle(ze_context_handle_t context, const void *address)
{
    ENTER();
    soft_lock();
    memory *m = soft_find(address);
    void *begin = m ? soft_address(m) : (void *)address;
    soft_unlock();
    return release(begin, true);
}

ze_result_t zeMemPutIpcHandle(ze_context_handle_t context, ze_ipc_mem_handle_t handle)
{
    ENTER();
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeMemGetFileDescriptorFromIpcHandleExp(ze_context_handle_t context, ze_ipc_mem_handle_t handle,
                                                   uint64_t *out)
{
    ENTER();
    int fd;
    memcpy(&fd, &handle, sizeof fd); /* it comes first */
    *out = (uint64_t)fd;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeMemGetIpcHandleFromFileDescriptorExp(ze_context_handle_t context, uint64_t fd, ze_ipc_mem_handle_t *out)
{
    ENTER();
    struct stat status;
    if (fstat((int)fd, &status))
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    soft_handle(out, "softze mem", (int)fd, (uint64_t)status.st_size, 0, ZE_MEMORY_TYPE_DEVICE);
    return ZE_RESULT_SUCCESS;
}

/* --- pages of the program ----------------------------------------------------------------------------------------- */

ze_result_t zexDriverImportExternalPointer(ze_driver_handle_t driver, void *address, size_t size)
{
    ENTER();
    soft_lock();
    bool taken = soft_find(address);
    if (!taken)
        enter(SYSTEM, address, size, -1, 0, ZE_MEMORY_TYPE_HOST, NULL);
    soft_unlock();
    return taken ? ZE_RESULT_ERROR_INVALID_ARGUMENT : ZE_RESULT_SUCCESS;
}

ze_result_t zexDriverReleaseImportedPointer(ze_driver_handle_t driver, void *address)
{
    ENTER();
    soft_lock();
    memory *m = soft_find(address);
    bool imported = m && m->head.kind == SYSTEM;
    if (imported)
        soft_delete(m);
    soft_unlock();
    return imported ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

ze_result_t zexDriverGetHostPointerBaseAddress(ze_driver_handle_t driver, void *address, void **base)
{
    ENTER();
    soft_lock();
    memory *m = soft_find(address);
    if (m && base)
        *base = m->host;
    soft_unlock();
    return m && m->head.kind == SYSTEM ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}
