/* The software driver's events: of pools, and counter-based ones, which stand for a value of a list's counter. */
#include "soft.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)

/* --- pools -------------------------------------------------------------------------------------------------------- */

static ze_result_t enter_pool(int fd, uint32_t count, uint32_t flags, bool opened, ze_event_pool_handle_t *out)
{
    void *slots = fd < 0 ? MAP_FAILED : mmap(NULL, count * sizeof(slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (slots == MAP_FAILED) {
        soft_close(fd);
        return opened ? ZE_RESULT_ERROR_INVALID_ARGUMENT : ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    event_pool *p = soft_new(EVENT_POOL, sizeof *p);
    p->fd = fd;
    p->count = count;
    p->flags = flags;
    p->opened = opened;
    p->slots = slots;
    *out = (ze_event_pool_handle_t)p;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventPoolCreate(ze_context_handle_t context, const ze_event_pool_desc_t *desc, uint32_t number,
                              ze_device_handle_t *devices, ze_event_pool_handle_t *out)
{
    ENTER();
    if (!desc->count)
        return ZE_RESULT_ERROR_INVALID_SIZE;
    return enter_pool(soft_memfd(desc->count * sizeof(slot)), desc->count, desc->flags, false, out);
}

static ze_result_t drop_pool(ze_event_pool_handle_t handle)
{
    event_pool *p = soft_live(handle, EVENT_POOL);
    if (!p)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    munmap(p->slots, p->count * sizeof(slot));
    soft_close(p->fd);
    soft_delete(p);
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventPoolDestroy(ze_event_pool_handle_t handle)
{
    ENTER();
    return drop_pool(handle);
}

ze_result_t zeEventPoolGetIpcHandle(ze_event_pool_handle_t handle, ze_ipc_event_pool_handle_t *out)
{
    ENTER();
    event_pool *p = soft_live(handle, EVENT_POOL);
    if (!p || !(p->flags & ZE_EVENT_POOL_FLAG_IPC))
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    soft_handle(out, "softze pool", p->fd, p->count, p->flags, 0);
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventPoolOpenIpcHandle(ze_context_handle_t context, ze_ipc_event_pool_handle_t handle,
                                     ze_event_pool_handle_t *out)
{
    ENTER();
    ipc_handle got;
    int fd = soft_opened(&handle, "softze pool", &got);
    return enter_pool(fd, (uint32_t)got.size, (uint32_t)got.offset, true, out);
}

ze_result_t zeEventPoolCloseIpcHandle(ze_event_pool_handle_t handle)
{
    ENTER();
    return drop_pool(handle);
}

ze_result_t zeEventPoolPutIpcHandle(ze_context_handle_t context, ze_ipc_event_pool_handle_t handle)
{
    ENTER();
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventCreate(ze_event_pool_handle_t handle, const ze_event_desc_t *desc, ze_event_handle_t *out)
{
    ENTER();
    event_pool *p = soft_live(handle, EVENT_POOL);
    if (!p || desc->index >= p->count)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    event *e = soft_new(EVENT, sizeof *e);
    e->slot = p->slots + desc->index;
    e->signal = desc->signal;
    e->wait = desc->wait;
    e->fd = e->mapped_fd = e->signal_fd = -1;
    if (!p->opened)
        memset((void *)e->slot, 0, sizeof *e->slot);
    *out = (ze_event_handle_t)e;
    return ZE_RESULT_SUCCESS;
}

/* --- counter-based events ----------------------------------------------------------------------------------------- */

static ze_result_t enter_event(int fd, uint32_t flags, uint32_t signal, uint32_t wait, bool opened, event **out)
{
    void *state = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED) {
        soft_close(fd);
        return opened ? ZE_RESULT_ERROR_INVALID_ARGUMENT : ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    event *e = soft_new(EVENT, sizeof *e);
    e->counter_based = true;
    e->opened = opened;
    e->flags = flags;
    e->signal = signal;
    e->wait = wait;
    e->fd = fd;
    e->mapped_fd = e->signal_fd = -1;
    e->state = state;
    *out = e;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventCounterBasedCreate(ze_context_handle_t context, ze_device_handle_t device,
                                      const ze_event_counter_based_desc_t *desc, ze_event_handle_t *out)
{
    ENTER();
    const uint32_t stamps = ZE_EVENT_COUNTER_BASED_FLAG_DEVICE_TIMESTAMP | ZE_EVENT_COUNTER_BASED_FLAG_HOST_TIMESTAMP;
    uint32_t flags = desc ? desc->flags : 0;
    if (!soft_live(context, CONTEXT))
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (flags & ~0x7fu)
        return ZE_RESULT_ERROR_INVALID_ENUMERATION;
    if ((flags & stamps) == stamps || (flags & ZE_EVENT_COUNTER_BASED_FLAG_IPC && flags & stamps))
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    const void *next = desc ? desc->pNext : NULL;
    const ze_event_counter_based_external_sync_allocation_desc_t *sync =
        soft_chain(next, ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_EXTERNAL_SYNC_ALLOCATION_DESC);
    const ze_event_counter_based_external_aggregate_storage_desc_t *storage =
        soft_chain(next, ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_EXTERNAL_AGGREGATE_STORAGE_DESC);
    if (sync && storage)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    if (sync && (!soft_reachable(sync->deviceAddress, 8) || !soft_reachable(sync->hostAddress, 8) ||
                 (soft_narrow() && sync->completionValue > UINT32_MAX)))
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    if (storage && (!storage->incrementValue || !soft_reachable(storage->deviceAddress, 8)))
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    event *e;
    ze_result_t result =
        enter_event(soft_memfd(PAGE), flags, desc ? desc->signal : 0, desc ? desc->wait : 0, false, &e);
    if (result)
        return result;
    if (sync) {
        e->external = (uint64_t *)soft_host(sync->deviceAddress);
        e->completion = sync->completionValue;
    }
    if (storage) {
        e->external = (uint64_t *)soft_host(storage->deviceAddress);
        e->completion = storage->completionValue;
        e->increment = storage->incrementValue;
    }
    *out = (ze_event_handle_t)e;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventCounterBasedGetIpcHandle(ze_event_handle_t handle, ze_ipc_event_counter_based_handle_t *out)
{
    ENTER();
    event *e = soft_live(handle, EVENT);
    if (!e || !e->counter_based || !(e->flags & ZE_EVENT_COUNTER_BASED_FLAG_IPC) || e->external)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    soft_handle(out, "softze event", e->fd, e->signal | (uint64_t)e->wait << 32, e->flags, 0);
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventCounterBasedOpenIpcHandle(ze_context_handle_t context, ze_ipc_event_counter_based_handle_t handle,
                                             ze_event_handle_t *out)
{
    ENTER();
    ipc_handle got;
    int fd = soft_opened(&handle, "softze event", &got);
    event *e;
    ze_result_t result =
        enter_event(fd, (uint32_t)got.offset, (uint32_t)got.size, (uint32_t)(got.size >> 32), true, &e);
    if (!result)
        *out = (ze_event_handle_t)e;
    return result;
}

static void unmap_counter(event *e)
{
    if (e->counter)
        munmap((void *)e->counter, PAGE);
    soft_close(e->mapped_fd);
    e->counter = NULL;
    e->mapped_fd = -1;
}

static ze_result_t drop_event(ze_event_handle_t handle, bool opened)
{
    event *e = soft_live(handle, EVENT);
    if (!e)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (opened && !e->opened)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    unmap_counter(e);
    if (e->state)
        munmap(e->state, PAGE);
    soft_close(e->signal_fd);
    soft_close(e->fd);
    soft_delete(e);
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventDestroy(ze_event_handle_t handle)
{
    ENTER();
    return drop_event(handle, false);
}

ze_result_t zeEventCounterBasedCloseIpcHandle(ze_event_handle_t handle)
{
    ENTER();
    return drop_event(handle, true);
}

ze_result_t zeEventGetCounterBasedFlags(ze_event_handle_t handle, ze_event_counter_based_flags_t *out)
{
    ENTER();
    event *e = soft_live(handle, EVENT);
    if (!e)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    *out = e->counter_based ? e->flags : 0;
    return ZE_RESULT_SUCCESS;
}

void soft_count(event *e, list *l, uint64_t value)
{
    shared_state *s = e->state;
    soft_lock();
    if (e->signal_fd < 0 || soft_inode(e->signal_fd) != soft_inode(l->fd)) { /* the list may go before the event */
        int fd = soft_dup(l->fd);
        soft_close(e->signal_fd);
        e->signal_fd = fd;
    }
    e->external = NULL; /* signalling replaces an external synchronization */
    ++s->sequence;
    s->pid = getpid();
    s->fd = e->signal_fd;
    s->value = value;
    s->start = s->end = soft_now();
    ++s->sequence;
    soft_unlock();
}

/* --- state -------------------------------------------------------------------------------------------------------- */

point soft_point(event *e)
{
    if (e->slot)
        return (point){&e->slot->state, 1};
    if (e->external)
        return (point){(_Atomic uint64_t *)e->external, e->completion};
    shared_state *s = e->state;
    uint64_t before, value;
    int pid, fd;
    do {
        while ((before = s->sequence) & 1)
            sched_yield();
        pid = s->pid;
        fd = s->fd;
        value = s->value;
    } while (s->sequence != before);
    if (!pid)
        return (point){NULL, 0};
    soft_lock();
    if (!e->counter || e->counter_pid != pid || e->counter_fd != fd) {
        int got = soft_fetch(pid, fd);
        void *page = got < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, got, 0);
        if (page == MAP_FAILED) {
            soft_close(got);
            soft_unlock();
            abort(); /* like Intel's driver, where the last signaller is gone */
        }
        unmap_counter(e);
        e->counter = page;
        e->counter_pid = pid;
        e->counter_fd = fd;
        e->mapped_fd = got;
    }
    point found = {e->counter, value};
    soft_unlock();
    return found;
}

bool soft_reached(point p, bool narrow)
{
    if (!p.at)
        return true;
    return narrow ? (uint32_t)*p.at >= (uint32_t)p.value : *p.at >= p.value;
}

ze_result_t zeEventHostSignal(ze_event_handle_t handle)
{
    ENTER();
    event *e = soft_live(handle, EVENT);
    if (!e || e->counter_based)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    e->slot->start = e->slot->end = soft_now();
    e->slot->state = 1;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventHostReset(ze_event_handle_t handle)
{
    ENTER();
    event *e = soft_live(handle, EVENT);
    if (!e || e->counter_based)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    e->slot->state = 0;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventQueryStatus(ze_event_handle_t handle)
{
    ENTER();
    event *e = soft_live(handle, EVENT);
    if (!e)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    return soft_reached(soft_point(e), soft_narrow()) ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}

ze_result_t zeEventHostSynchronize(ze_event_handle_t handle, uint64_t timeout)
{
    ENTER();
    event *e = soft_live(handle, EVENT);
    if (!e)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    point p = soft_point(e);
    uint64_t began = soft_now();
    while (!soft_reached(p, soft_narrow())) {
        if (timeout != UINT64_MAX && soft_now() - began >= timeout)
            return ZE_RESULT_NOT_READY;
        usleep(20);
    }
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventQueryKernelTimestamp(ze_event_handle_t handle, ze_kernel_timestamp_result_t *out)
{
    ENTER();
    event *e = soft_live(handle, EVENT);
    if (!e)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    if (!soft_reached(soft_point(e), soft_narrow()))
        return ZE_RESULT_NOT_READY;
    memset(out, 0, sizeof *out);
    out->global.kernelStart = out->context.kernelStart = e->slot ? e->slot->start : e->state->start;
    out->global.kernelEnd = out->context.kernelEnd = e->slot ? e->slot->end : e->state->end;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeEventCounterBasedGetDeviceAddress(ze_event_handle_t handle, uint64_t *value, uint64_t *address)
{
    ENTER();
    event *e = soft_live(handle, EVENT);
    if (!e || !e->counter_based)
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    point p = soft_point(e);
    *value = p.value;
    *address = (uint64_t)(uintptr_t)p.at;
    return ZE_RESULT_SUCCESS;
}
