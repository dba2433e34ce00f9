/* A software driver for Level Zero: device memory is memfds, and a thread runs what is appended to command lists. Built
 * as a driver it runs under the real loader (ZE_ENABLE_ALT_DRIVERS). Built with STAND_IN it takes the loader's place:
 * its functions carry the loader's names. It copies what Intel's driver was seen to do, its traps too:
 *   - device addresses lie in the upper half, and the host cannot use them;
 *   - small allocations share one memfd, which their IPC handles give away whole;
 *   - the fds that it hands out are its own, the same ones at each call; whoever closes one breaks the driver;
 *   - an import takes any size;
 *   - lists of one ordinal and index share a hardware queue, where a wait of one holds up the others;
 *   - a copy of eight bytes or fewer is a kernel of single bytes.
 *
 * Environment:
 *   SOFTZE_DEVICES=n     how many devices (default: 1)
 *   SOFTZE_BITS=32       counters and waits have 32 bits
 *   SOFTZE_OLD=1         an older driver: API 1.3, IPC handles of memory are bare fds, no extension functions
 *   SOFTZE_PLAIN=1       as Intel's driver (26.27): device stores and waits take any page of the program, and what is
 *                        inside an imported range for that range's start
 *   SOFTZE_REFUSE=a,b    these functions answer that they are not supported
 *   SOFTZE_FAIL=a:n      the nth call of a fails (0: each), as softze_fail below
 *   SOFTZE_BOOKS=file    at exit, a line about what was created and not destroyed is appended to the file
 * A program may also call the functions softze_… below. */
#ifndef SOFT_H
#define SOFT_H
#define _GNU_SOURCE
#ifdef STAND_IN
#include "ze_subset.h"
#else
#include <level_zero/ze_api.h>
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EXPORTED __attribute__((visibility("default")))
#define MAX_DEVICES 8
#define QUEUES 4                         /* of each device, all of ordinal 0 */
#define GRANULE ((size_t)65536)          /* of memory */
#define POOLED ((size_t)2 << 20)         /* of the buffer that small allocations share */
#define HIGH UINT64_C(0xffff800000000000) /* where device addresses begin */

/* --- objects and the books: soft_books.c -------------------------------------------------------------------------- */

enum kind { CONTEXT, MEMORY, OPENED, SYSTEM, PHYSICAL, RESERVATION, MAPPING, EVENT_POOL, EVENT, LIST, KINDS };

typedef struct object { /* every object begins with one */
    struct object *next;
    enum kind kind;
} object;

/* What every function begins with: counts the call; another result than ZE_RESULT_SUCCESS is what it must return. */
ze_result_t soft_enter(const char *function);
#define ENTER()                                                                                                        \
    do {                                                                                                               \
        ze_result_t refused = soft_enter(__func__);                                                                    \
        if (refused)                                                                                                   \
            return refused;                                                                                            \
    } while (0)

void soft_lock(void); /* for the list of objects; recursive */
void soft_unlock(void);
void *soft_new(enum kind kind, size_t size);            /* zeroed, entered in the books */
void *soft_own_context(void);                           /* a context that no book lists */
void soft_delete(void *what);                           /* struck off, freed */
void *soft_live(const void *handle, enum kind kind);    /* the object, or NULL and an entry among the violations */
object *soft_objects(void);                             /* the first */
void soft_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

bool soft_old(void);
bool soft_narrow(void); /* counters of 32 bits */
bool soft_plain(void); /* SOFTZE_PLAIN */
bool soft_lost(void); /* a call has failed with "device lost": work may be given up */
int soft_devices(void);
uint64_t soft_now(void); /* nanoseconds */

EXPORTED int softze_left(const char *kind);               /* objects of a kind, or "fd", or "violation"; -1: unknown */
EXPORTED int softze_books(char *out, size_t size);        /* all that is left, as text; how many things that is */
EXPORTED void softze_fail(const char *function, int nth, uint32_t result); /* call `nth` from now on (0: each) fails */
EXPORTED void softze_stall(const char *function, int milliseconds);        /* each call takes so long */
EXPORTED int softze_calls(const char *function);          /* since the last reset */
EXPORTED const char *softze_called(int index);            /* the names of functions called so far; then NULL */
EXPORTED void softze_reset(void);                         /* no failure, no stall, no count, no violation */

/* --- memory: soft_memory.c, soft_ranges.c ------------------------------------------------------------------------- */

int soft_memfd(size_t size);   /* entered in the books, as all fds; -1 on failure */
int soft_dup(int fd);
int soft_fetch(int pid, int fd); /* another process's; -1 on failure */
void soft_close(int fd);
bool soft_same(int fd, ino_t inode); /* whether nobody has closed or replaced the driver's fd */

typedef struct {
    object head;
    char *host;      /* where this process has it */
    size_t size;
    int fd;          /* -1: the pages are the program's own */
    ino_t inode;     /* of fd */
    size_t offset;   /* in fd */
    struct pool *pool; /* of a small allocation */
    ze_memory_type_t type;
    ze_device_handle_t device;
    uint64_t id;
    ze_memory_access_attribute_t access; /* of a mapping */
    void *physical;                      /* of a mapping */
} memory;

typedef struct {
    object head;
    int fd;
    ino_t inode;
    size_t size;
    ze_device_handle_t device;
    uint64_t id;
    bool exportable;
} physical;

uint64_t soft_id(void);
ino_t soft_inode(int fd);
const void *soft_chain(const void *next, ze_structure_type_t type); /* the structure of that type, or NULL */
char *soft_place(size_t size, size_t alignment, int fd, size_t offset, int protection); /* map it; NULL on failure */
void *soft_address(const memory *m);     /* what the program sees */
char *soft_host(const void *address);    /* the reverse, for any address */
memory *soft_find(const void *address);  /* memory with content that contains the address; call it locked */
bool soft_reachable(const void *address, size_t size); /* by the device */

typedef struct { /* an IPC handle: the fd first, as in Intel's drivers, then (not in old ones) whose it is */
    int fd, reserved;
    uint64_t offset;
    int pid, device;
    uint64_t size;
    uint32_t type;
    char magic[16];
} ipc_handle;
/* Write one into a Level Zero handle; read one, with an fd of our own for it, or -1. */
void soft_handle(void *out, const char *magic, int fd, uint64_t size, uint64_t offset, uint32_t type);
int soft_opened(const void *handle, const char *magic, ipc_handle *out);

/* --- events and command lists: soft_events.c, soft_lists.c -------------------------------------------------------- */

typedef struct { /* of an event in a pool: in the pool's memfd */
    _Atomic uint64_t state, start, end, unused[5];
} slot;

typedef struct {
    object head;
    int fd;
    uint32_t count, flags;
    bool opened;
    slot *slots;
} event_pool;

typedef struct { /* of a counter-based event, in a memfd of its own: where its counter is. Both sides change it. */
    _Atomic uint64_t sequence, value, start, end; /* odd sequence: being changed */
    _Atomic int pid, fd;                          /* of the page with the counter; pid 0: never signalled */
} shared_state;

typedef struct {
    object head;
    slot *slot; /* of an event in a pool; else: */
    bool counter_based, opened;
    uint32_t flags, signal, wait;
    int fd;
    shared_state *state;
    uint64_t *external, completion, increment; /* of an external synchronization or aggregate storage */
    _Atomic uint64_t *counter;                 /* the page of the last signaller, as mapped here */
    int counter_pid, counter_fd, mapped_fd;
    int signal_fd; /* the counter of the list that signalled it here last */
} event;

typedef struct { /* what a wait waits for, as known when it was called */
    _Atomic uint64_t *at; /* NULL: nothing */
    uint64_t value;
} point;

typedef struct list {
    object head;
    struct hardware *hardware;
    ze_context_handle_t context;
    ze_device_handle_t device;
    uint32_t ordinal, index, flags, mode, priority;
    _Atomic uint64_t submitted, done;
    _Atomic int cancelled; /* destroyed: its waits end */
    int fd;                /* of the page with the counter for counter-based events */
    _Atomic uint64_t *counter;
    uint64_t signals;
} list;

point soft_point(event *e);
bool soft_reached(point p, bool narrow);
void soft_count(event *e, list *l, uint64_t value); /* e stands for that value of the list's counter from now on */

/* --- the driver's own functions beyond the official headers ------------------------------------------------------- */

typedef struct {
    uint32_t action, scope;
} wait_on_memory;
typedef struct {
    uint32_t scope;
} write_to_memory;

ze_result_t zexCommandListAppendWaitOnMemory(ze_command_list_handle_t, wait_on_memory *, void *, uint32_t,
                                             ze_event_handle_t);
ze_result_t zexCommandListAppendWaitOnMemory64(ze_command_list_handle_t, wait_on_memory *, void *, uint64_t,
                                               ze_event_handle_t);
ze_result_t zexCommandListAppendWriteToMemory(ze_command_list_handle_t, write_to_memory *, void *, uint64_t);
ze_result_t zexDriverImportExternalPointer(ze_driver_handle_t, void *, size_t);
ze_result_t zexDriverReleaseImportedPointer(ze_driver_handle_t, void *);
ze_result_t zexDriverGetHostPointerBaseAddress(ze_driver_handle_t, void *, void **);

#endif
