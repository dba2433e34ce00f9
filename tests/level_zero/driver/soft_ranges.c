/* The software driver's physical memory, and the virtual ranges it is mapped into. */
#include "soft.h"
#include <sys/mman.h>
#include <string.h>
#include <unistd.h>

ze_result_t zePhysicalMemCreate(ze_context_handle_t context, ze_device_handle_t device, ze_physical_mem_desc_t *desc,
                                ze_physical_mem_handle_t *out)
{
    ENTER();
    const ze_external_memory_import_fd_t *imported =
        soft_chain(desc->pNext, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD);
    if (!soft_live(context, CONTEXT))
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (!desc->size || desc->size % GRANULE)
        return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    int fd = imported ? soft_dup(imported->fd) : soft_memfd(desc->size);
    if (fd < 0)
        return imported ? ZE_RESULT_ERROR_INVALID_ARGUMENT : ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    physical *p = soft_new(PHYSICAL, sizeof *p);
    p->fd = fd;
    p->inode = soft_inode(fd);
    p->size = desc->size;
    p->device = device;
    p->id = soft_id();
    p->exportable = imported || soft_chain(desc->pNext, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC);
    *out = (ze_physical_mem_handle_t)p;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zePhysicalMemDestroy(ze_context_handle_t context, ze_physical_mem_handle_t handle)
{
    ENTER();
    physical *p = soft_live(handle, PHYSICAL);
    if (!p)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (soft_same(p->fd, p->inode))
        soft_close(p->fd);
    soft_delete(p); /* mappings have an fd of their own */
    return ZE_RESULT_SUCCESS;
}

ze_result_t zePhysicalMemGetProperties(ze_context_handle_t context, ze_physical_mem_handle_t handle,
                                       ze_physical_mem_properties_t *out)
{
    ENTER();
    physical *p = soft_live(handle, PHYSICAL);
    if (!p)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    out->id = p->id;
    out->size = p->size;
    ze_external_memory_export_fd_t *fd = (void *)soft_chain(out->pNext, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD);
    if (!fd)
        return ZE_RESULT_SUCCESS;
    if (!p->exportable)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    fd->fd = p->fd;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeVirtualMemQueryPageSize(ze_context_handle_t context, ze_device_handle_t device, size_t size, size_t *out)
{
    ENTER();
    *out = GRANULE;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeVirtualMemReserve(ze_context_handle_t context, const void *wanted, size_t size, void **out)
{
    ENTER();
    if (!soft_live(context, CONTEXT))
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (!size || size % GRANULE)
        return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    if (size > (size_t)1 << 46)
        return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    char *host = MAP_FAILED;
    if (wanted && (uintptr_t)wanted % GRANULE == 0)
        host = mmap(soft_host(wanted), size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (host == MAP_FAILED) /* only a wish: elsewhere, then */
        host = soft_place(size, GRANULE, -1, 0, PROT_NONE);
    if (!host)
        return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    memory *m = soft_new(RESERVATION, sizeof *m);
    m->host = host;
    m->size = size;
    m->type = ZE_MEMORY_TYPE_DEVICE;
    *out = soft_address(m);
    return ZE_RESULT_SUCCESS;
}

static memory *reservation_of(const void *address, size_t size) /* call it locked */
{
    for (object *each = soft_objects(); each; each = each->next) {
        memory *m = (memory *)each;
        if (each->kind == RESERVATION && soft_host(address) >= m->host &&
            soft_host(address) + size <= m->host + m->size)
            return m;
    }
    return NULL;
}

static memory *mapping_in(const void *address, size_t size) /* any that overlaps; call it locked */
{
    for (object *each = soft_objects(); each; each = each->next) {
        memory *m = (memory *)each;
        if (each->kind == MAPPING && soft_host(address) < m->host + m->size && m->host < soft_host(address) + size)
            return m;
    }
    return NULL;
}

ze_result_t zeVirtualMemFree(ze_context_handle_t context, const void *address, size_t size)
{
    ENTER();
    soft_lock();
    memory *m = reservation_of(address, size);
    bool whole = m && m->host == soft_host(address) && m->size == size;
    if (!whole)
        soft_violation("[%p, +%zu] is no reservation", address, size);
    else if (mapping_in(address, size))
        soft_violation("[%p, +%zu] still has mappings", address, size);
    if (whole) {
        munmap(m->host, m->size);
        soft_delete(m);
    }
    soft_unlock();
    return whole ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

static int protection(ze_memory_access_attribute_t access)
{
    return access == ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE  ? PROT_READ | PROT_WRITE
           : access == ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY ? PROT_READ
                                                           : PROT_NONE;
}

ze_result_t zeVirtualMemMap(ze_context_handle_t context, const void *address, size_t size,
                            ze_physical_mem_handle_t handle, size_t offset, ze_memory_access_attribute_t access)
{
    ENTER();
    physical *p = soft_live(handle, PHYSICAL);
    if (!p)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (offset % GRANULE || size % GRANULE || (uintptr_t)address % GRANULE)
        return ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT;
    if (offset + size > p->size)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    soft_lock();
    bool good = reservation_of(address, size) && !mapping_in(address, size);
    int fd = good ? soft_dup(p->fd) : -1;
    good = fd >= 0 && mmap(soft_host(address), size, protection(access), MAP_SHARED | MAP_FIXED, fd, (off_t)offset) !=
                          MAP_FAILED;
    if (good) {
        memory *m = soft_new(MAPPING, sizeof *m);
        m->host = soft_host(address);
        m->size = size;
        m->fd = fd;
        m->inode = soft_inode(fd);
        m->offset = offset;
        m->type = ZE_MEMORY_TYPE_DEVICE;
        m->device = p->device;
        m->id = soft_id();
        m->access = access;
    } else
        soft_close(fd);
    soft_unlock();
    return good ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

ze_result_t zeVirtualMemUnmap(ze_context_handle_t context, const void *address, size_t size)
{
    ENTER();
    soft_lock();
    memory *m = mapping_in(address, size);
    bool whole = m && m->host == soft_host(address) && m->size == size;
    if (whole) {
        mmap(m->host, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        soft_close(m->fd);
        soft_delete(m);
    }
    soft_unlock();
    return whole ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

ze_result_t zeVirtualMemSetAccessAttribute(ze_context_handle_t context, const void *address, size_t size,
                                           ze_memory_access_attribute_t access)
{
    ENTER();
    soft_lock();
    memory *m = mapping_in(address, size);
    if (m) {
        m->access = access;
        mprotect(soft_host(address), size, protection(access));
    }
    bool known = m || reservation_of(address, size);
    soft_unlock();
    return known ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

ze_result_t zeVirtualMemGetAccessAttribute(ze_context_handle_t context, const void *address, size_t size,
                                           ze_memory_access_attribute_t *access, size_t *out)
{
    ENTER();
    soft_lock();
    memory *m = mapping_in(address, size);
    if (!m)
        m = reservation_of(address, size);
    if (m) {
        *access = m->access;
        *out = m->size;
    }
    soft_unlock();
    return m ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}
