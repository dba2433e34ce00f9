/* libur_adapter_xpushare: the library that Unified Runtime's own loader loads. It answers with the functions of
 * `xpushare.ur`, in an interpreter that the program has, or that it starts. Nothing here is linked with Python. */
#ifndef XP_PARTS_H
#define XP_PARTS_H

#include "../../engine/outside.h"
#include "functions.h" /* its numbers */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XP_EXPORT __attribute__((visibility("default")))

/* Results of Unified Runtime. */
enum {
    XP_SUCCESS = 0, XP_INVALID_OPERATION = 1, XP_UNINITIALIZED = 37, XP_UNSUPPORTED_VERSION = 43,
    XP_UNSUPPORTED_FEATURE = 44, XP_INVALID_NULL_POINTER = 48, XP_UNKNOWN = 0x7ffffffe
};

typedef void (*xp_slot)(void);
typedef struct {
    uint64_t x, y, z;
} xp_three; /* ur_rect_offset_t, ur_rect_region_t */

/* --- handles.c ---------------------------------------------------------------------------------------------------- */
enum { XP_BY_PYTHON, XP_RETAINS, XP_RELEASES, XP_STATUS, XP_WAITS, XP_FINISHES, XP_ASKS, XP_CALLS_BACK };
typedef struct xp_lane xp_lane;

/* The object that a handle points to. It is never freed, since a program may pass a handle that was released long
 * ago. So it is small. */
typedef struct xp_box {
    const xp_slot *dispatch; /* where the loader looks */
    uint8_t kind;            /* 0: Python counts its references, or it is gone */
    uint8_t type;            /* the kind that it has, or had */
    uint8_t owed;            /* of an event: its command was neither carried out nor given to Python yet */
    uint8_t done;            /* of an event: its command was carried out without Python */
    uint8_t known;           /* of such an event: Python has an object for it nevertheless */
    uint8_t unseen;          /* of an event: no program has its handle, so the box is reused */
    union {
        uint16_t function; /* of an event that the library has made: the command that made it */
        uint16_t traits;   /* of a queue: what it can do */
    };
    int64_t count; /* the program's references plus, in units of XP_HOLD, the commands of lanes that still need it */
    union {
        void *event;   /* of an event: its slot, in the engine; or NULL */
        xp_lane *lane; /* of a device's queue that works without Python; of other queues from their first command on */
    };
    union {
        struct xp_box *queue; /* of an event: held for the object that Python may make later; or NULL */
        struct {              /* of a queue */
            uint16_t backend, by_python; /* by_python: its half in Python may have work, or something to report */
            uint32_t callers;            /* how many calls are about to use that */
        };
        struct xp_box *next; /* once it is gone */
    };
    uint64_t point; /* of an event whose command a device got without Python: its point in the slot; otherwise 0 */
} xp_box;

#define XP_HOLD ((int64_t)1 << 32)
#define XP_MOST_SLOTS 512

extern xp_slot xp_dispatch[XP_MOST_SLOTS]; /* all tables, one after the other, in the order of the loader's build */
extern void (*xp_close_lane)(xp_lane *lane); /* its queue is gone; see lanes.c */

static inline bool xp_is_owed(const xp_box *event) { return __atomic_load_n(&event->owed, __ATOMIC_ACQUIRE) != 0; }
bool xp_is(const xp_box *box, unsigned kind); /* kinds are numbered from 1 */
bool xp_is_box(const void *handle); /* or was one */
xp_box *xp_new_box(void);           /* or NULL */
bool xp_hold(xp_box *box);          /* false: it is gone */
void xp_let_go(xp_box *box);
bool xp_count(xp_box *box, int64_t more); /* add to its references if the program still has one; false if it has none */
bool xp_is_done(const xp_box *event);
enum { XP_PENDING, XP_DONE };
int xp_state_of(const xp_box *event, uint64_t *point); /* of its newest point, whose number it returns, too; -1 if that is unknown */
bool xp_natives(void);                                 /* false if Python sees every call */
/* The functions of the package's engine that this library calls: its outside.c and queue.c. */
typedef struct {
    uint64_t (*newest_point)(void *event);
    int (*state_at)(void *event, uint64_t point);
    int (*wait_at)(void *event, uint64_t point);
    void (*let_go)(void *event);
    void (*fill)(char *to, const char *pattern, uint64_t unit, uint64_t nbytes);
    int (*mapped)(uint64_t address, uint64_t nbytes, bool *ours);
    bool (*work)(void *queue, const xp_work *work, void **event, uint64_t *point);
    bool (*after)(void *queue, void *event, uint64_t point);
} xp_engine_functions;
extern xp_engine_functions xp_engine;

/* --- properties.c ------------------------------------------------------------------------------------------------- */
/* Answer a query with these bytes. True if they fit. `words`: those of the call, from the handle on. */
bool xp_give(const uint64_t *words, const void *value, size_t nbytes);
/* Answer a query about a handle of that kind. True if the answer is known and fits. */
bool xp_property_of(const xp_box *box, unsigned kind, const uint64_t *words);
void xp_forget(const xp_box *box);

/* --- ranges.c ----------------------------------------------------------------------------------------------------- */
enum { XP_HINTS, XP_READS, XP_WRITES }; /* hints are about USM memory only */
/* Return whether commands of that backend's queues may use `times` times so many bytes in this way. */
bool xp_reaches(uint32_t backend, uint64_t address, uint64_t nbytes, uint64_t times, int use);
/* The range that contains an address; only the address itself if none is known. */
void xp_range_of(uint64_t address, uint64_t *begin, uint64_t *end);
enum { XP_HERE, XP_ELSEWHERE, XP_ORDINARY };
/* Whether these bytes have none in common. */
static inline bool xp_apart(uint64_t a, uint64_t a_nbytes, uint64_t b, uint64_t b_nbytes)
{
    return a < b ? b - a >= a_nbytes : a - b >= b_nbytes;
}
int xp_lies(uint32_t device, uint64_t address); /* of memory that a command may use: whether it belongs to that device */

/* --- lanes.c ------------------------------------------------------------------------------------------------------ */
/* How a command is enqueued without Python. The fields are numbers of words. 0, the queue's word, stands for none. */
typedef struct {
    bool (*plain)(const uint64_t *a, uint32_t backend); /* true if no rule refuses it; NULL if only Python can decide */
    uint8_t waits;    /* the number of events in the wait list, which comes next */
    uint8_t event;    /* where to write the event's handle */
    uint8_t pattern;  /* its size is the word before */
    uint8_t blocking; /* whether the call waits for it */
    bool given;       /* an event may also be passed in */
    uint32_t needs;   /* traits of the queue */
    /* The memory that it uses: */
    enum { XP_NOTHING, XP_COPIES, XP_FILLS } does;
    uint8_t to, from, to_pitch, from_pitch, width, rows; /* `rows` may be none: there is one */
    /* The same for whoever takes memory away: `times` times so many bytes from there on. `times` may be none: once. */
    struct {
        uint8_t at, nbytes, times;
    } uses[2];
    uint32_t type; /* the kind of command */
} xp_command_form;

/* The earlier commands that must finish before Python handles a call. Numbers of words, counted from 1. */
typedef struct {
    uint8_t queue, event, given; /* handles; `given`: a pointer to an event's */
    uint8_t events;              /* the number of events in a list, which comes next */
    uint8_t memory;              /* an address: all commands that use its allocation, in any queue */
    uint8_t device;              /* a handle: all commands of its queues */
} xp_order;

enum { XP_MOST_WORDS = 16 };

/* True if it was enqueued: `*made` is its event, with a reference, or NULL. Otherwise nothing was done. */
bool xp_enqueue(unsigned function, const xp_command_form *form, const uint64_t *words, unsigned count, xp_box **made);
void xp_catch_up(const xp_order *order, const uint64_t *words); /* call it before Python answers a call, so that Python knows all it must */
void xp_caught_up(const xp_order *order, const uint64_t *words); /* after it */
bool xp_has_been_made(const xp_box *event); /* waits until its command is carried out or given to Python; false if Python has ended */
/* Waits for all its commands, including a device's with `of_device`. False: ask Python. */
bool xp_finish(const xp_box *queue, bool (*of_device)(const xp_box *queue));
/* Answer a query about an event whose command is still in its lane. `type`: of that command. */
bool xp_event_property(const xp_box *event, uint32_t type, const uint64_t *words);
bool xp_queue_is_busy(const xp_box *queue); /* commands are in its lane */
/* Call `answer` with these arguments, of which the first word is an event, once the event's command is carried out or
 * given to Python. False: it has been, or there is no memory. */
typedef uint32_t (*xp_answers)(unsigned function, const uint64_t *words, unsigned count);
bool xp_answer_later(xp_answers answer, unsigned function, const uint64_t *words, unsigned count);
void xp_flush(double seconds);              /* wait until all commands have left the lanes, but at most this long */

/* --- interpreter.c ------------------------------------------------------------------------------------------------ */
void xp_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Returns false after reporting why. Blocks. Once it has failed, it always fails. `flush`: what an exit does first,
 * and for how long at most. */
bool xp_python_start(unsigned functions, void (*flush)(double seconds));
/* XP_SUCCESS: it can be asked until `xp_python_exit`. Otherwise it can never be asked again: it has ended, or
 * belongs to the parent. */
uint32_t xp_python_enter(void);
uint32_t xp_python_over(void); /* the same without entering */
void xp_python_exit(void);
void xp_python_end(xp_box *box); /* its last reference was released: have Python end its object */
double xp_linger(void);          /* for how many seconds an exit waits */
void xp_python_finish(void (*wake)(void)); /* begin no more calls, wake the waiting threads, and wait for the calls that have begun */
uint32_t xp_python_call(unsigned function, const uint64_t *words, unsigned count);

typedef struct { /* for a thread that keeps its state in Python */
    void *state;
    int held;
} xp_python_thread;

bool xp_python_attach(xp_python_thread *thread); /* false: there is no Python any more */
void xp_python_detach(xp_python_thread *thread);
void xp_python_leave(xp_python_thread *thread);  /* for good */
/* Attached: have a command enqueued. `numbers`: in the form that the bridge expects. */
void xp_python_carry(const uint64_t *numbers, unsigned count);
/* Attached: whether its queue has nothing to report and, for a queue of the host, no work. */
bool xp_python_is_clean(const xp_box *queue);
/* Python's lock for a thread of the program that enters, and the state to give it back. */
int xp_python_hold(void);
void xp_python_let_go(int held);
/* For a thread that has Python's lock and is about to wait for others: release the lock meanwhile. */
void *xp_python_unlock(void);
void xp_python_lock(void *unlocked);

/* --- loader.c ----------------------------------------------------------------------------------------------------- */
/* The number of names, and the sum of their hashes. */
typedef struct {
    unsigned count;
    uint64_t sum;
} xp_fingerprint;
/* The names in the library that contains `code`: of functions of the tables, and of those that fill the tables. */
void xp_fingerprints(const void *code, xp_fingerprint *functions, xp_fingerprint *getters);

/* --- adapter.c ---------------------------------------------------------------------------------------------------- */
uint32_t xp_answer(unsigned function, const uint64_t *words, unsigned count);

#endif
