/* The shared memory of docs/layout.md and docs/events-protocol.md, byte by byte, and the numbers of the protocol.
 * Everything else derives from this header: Python reads it as `_native.STRUCTS`, `LAYOUT` and `CONSTANTS`. */
#ifndef XP_LAYOUT_H
#define XP_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define XP_VERSION 4u
#define XP_COOKIE 16u
#define XP_ENTRIES 262144u
#define XP_SLOTS 262144u
#define XP_MEMBERS 1024u
#define XP_MASK_WORDS (XP_MEMBERS / 64u)

#define XP_SEAL 32u
#define XP_MESSAGE_VERSION 4u
#define XP_MESSAGE_MOST (64u << 20) /* bytes of a message */
#define XP_ARRAY_DIMS 64u           /* NumPy's most, and PEP 3118's */

#define XP_HANDLE_MAGIC "XPUSHARE"
#define XP_MESSAGE_MAGIC "XPUSHARR"
#define XP_TABLE_MAGIC "XPUSHTAB"
#define XP_COMMONS_MAGIC "XPUSHCOM"
#define XP_REQUEST_MAGIC "XPSQ"
#define XP_REPLY_MAGIC "XPSR"

#define XP_TABLE_DEVICES 64u /* where the devices that entries name begin: an array of xp_device up to the entries */
#define XP_TABLE_HEADER 4096u
#define XP_TABLE_DEADLINES 0x4001000u /* for each entry: CLOCK_MONOTONIC nanoseconds, 0: none */
#define XP_TABLE_LABELS 0x4201000u    /* for each entry: see xp_label */
#define XP_TABLE_SIZE 0x5201000u
#define XP_COMMONS_MEMBERS 4096u
#define XP_COMMONS_HOLDERS 0x100000u
#define XP_COMMONS_OPENS 0x2100000u
#define XP_COMMONS_ROLES 0x2500000u
#define XP_COMMONS_PICKLES 0x6500000u
#define XP_COMMONS_SLOTS 0x6700000u
#define XP_COMMONS_USERS 0xa700000u
#define XP_COMMONS_SIZE 0xc700000u

/* Lock bytes of the commons file, two for each member: one that the member holds, and one that its reaper holds. */
#define XP_LIFE_BYTE 0x40000000
#define XP_REAP_BYTE 0x50000000

#define XP_POINT_BITS 43
#define XP_POINT_MAX ((1ull << XP_POINT_BITS) - 1)
#define XP_OUTSTANDING_MAX ((1ull << 20) - 1)
#define XP_FACTS 8u

#define XP_DEVICE 1u /* bits of `device` in a slot */
#define XP_LATE 2u

#define XP_ROSTER_CANDIDATE 1u /* the low two bits of `roster` in a slot: who died, if not 0 */
#define XP_ROSTER_SIGNALLER 2u
#define XP_ROSTER_LOSS 3u
#define XP_ROSTER_EVER 4u       /* a process has been a signaller */
#define XP_ROSTER_JOINED_BIT 4u /* 1 + the only member that joined since then, or 0 */
#define XP_ROSTER_JOINED 0xffff0u
#define XP_ROSTER_CHANGE 0x100000u /* counts changes */

#define XP_PICKLES_COUNT 0x1fffffu /* the low bits of a slot's word of pickles: how many still wait for their first open */
#define XP_PICKLES_OPENED 0x200000u /* another process has opened the event since the newest pickle was made */
#define XP_PICKLES_UNTIL_BIT 22u    /* the bits above: when the newest pickle expires, CLOCK_MONOTONIC milliseconds */

#define XP_CAUSE_DEATH 1u
#define XP_CAUSE_QUEUE 2u
#define XP_CAUSE_EXIT 3u
#define XP_CAUSE_ABANDONED 4u /* it exited, or dropped the event, without a signal */
#define XP_CAUSE_UNOPENED 5u  /* its last pickle has expired, and nobody has opened it */
#define XP_EXITING 2u /* a member's state */

#define XP_REASON_PUT 1u /* why an entry ended */
#define XP_REASON_FREED 2u
#define XP_REASON_OPENS 3u
#define XP_REASON_TTL 4u
#define XP_REASON_PICKLE 5u

#define XP_OP_HELLO 1u
#define XP_OP_FDS 2u
#define XP_STATUS_OK 0u
#define XP_STATUS_MALFORMED 1u
#define XP_STATUS_OTHER_USER 2u
#define XP_STATUS_NOT_LIVE 3u
#define XP_STATUS_BUSY 4u
#define XP_STATUS_DRIVER_ERROR 5u
#define XP_FDS_AT_ONCE 253u /* how many fds one packet carries: the kernel's SCM_MAX_FD */

#define XP_ENTRY_READ_ONLY 1u /* in handles, too */
#define XP_ENTRY_COUNTED 2u   /* likewise */
#define XP_ENTRY_ON_DEMAND 4u
#define XP_ENTRY_FORM_BIT 3u
#define XP_ENTRY_FORM 0x38u /* the form of the fds: 1 (XP_ENTRY_MEMFD) to 4, or 0 for the driver's own */
#define XP_ENTRY_MEMFD 8u
#define XP_ENTRY_FORM_LAST 0x20u
#define XP_ENTRY_PICKLED 0x40u /* in handles, too */
#define XP_HANDLE_FLAGS (XP_ENTRY_READ_ONLY | XP_ENTRY_COUNTED | XP_ENTRY_PICKLED)
#define XP_ENTRY_FLAGS (XP_HANDLE_FLAGS | XP_ENTRY_ON_DEMAND | XP_ENTRY_FORM)
#define XP_ENTRY_FDS 6u

#define XP_MARK_FOREVER 1u /* somebody may reach the memory for longer than any mask shows */
#define XP_MARK_OWNED 2u   /* a process that has it open passes it on */

#define XP_KIND_MEMORY 1u
#define XP_KIND_PHYSICAL_MEMORY 2u
#define XP_KIND_EVENT 3u

typedef struct {
    uint8_t magic[8]; /* XPUSHARE */
    uint16_t version, kind;
    uint32_t flags;
    uint8_t backend[16], device_uuid[16], boot_id[16];
    uint64_t pid_namespace;
    uint32_t pid, table_fd;
    uint8_t cookie[XP_COOKIE];
    uint64_t generation;
    uint32_t entry, reserved0;
    uint8_t nonce[16];
    uint64_t object, offset, nbytes, exposed_nbytes, net_namespace;
    uint8_t reserved1[56], seal[XP_SEAL];
} xp_handle;

/* The beginning of a message, which is the handle of an array or of a tree of arrays. After it come the handles of
 * the memory, the handles of the events, each with its point, an xp_leaf for each array, their lengths and strides,
 * the text, and the seal. */
typedef struct {
    uint8_t magic[8]; /* XPUSHARR */
    uint16_t version, reserved0;
    uint32_t length, memory, events, arrays, steps, text_nbytes, reserved1;
    uint64_t copied;
} xp_message;

typedef struct {
    uint32_t memory, event, dtype; /* event: 1 + its index, or 0 */
    uint16_t ndim, reserved;
    uint64_t offset;
} xp_leaf;

typedef struct {
    char magic[8]; /* XPUSHTAB */
    uint32_t version, pid;
    uint8_t cookie[XP_COOKIE];
    uint64_t pid_namespace;
    int32_t commons_fd, bell_fd;
    uint64_t commons_inode;
} xp_table;

typedef struct {
    uint8_t backend[16], uuid[16], pci[16], driver_uuid[16];
} xp_device;

typedef struct {
    uint64_t generation, retired;
    uint32_t reason, kind, flags, slot;
    uint8_t nonce[16];
    uint64_t object, nbytes, exposed_nbytes, inode;
    uint32_t fd_count, payload_nbytes;
    int32_t fds[XP_ENTRY_FDS];
    uint64_t offset; /* offset of the object in the memory of the fds */
    uint32_t device, since;
    uint8_t payload[128];
} xp_entry;

typedef struct { /* the user's label of an export */
    uint64_t generation; /* of the export; if it differs, there is no label */
    char text[56];       /* UTF-8 */
} xp_label;

typedef struct {
    char magic[8]; /* XPUSHCOM */
    uint32_t version, reserved;
    uint8_t cookie[XP_COOKIE];
    uint32_t slots_used, entries_used, users_used;
} xp_commons;

typedef struct {
    uint32_t state, pid; /* state: 0 free, 1 attached, or XP_EXITING */
    uint64_t pid_namespace, attached_ns; /* as an xp_member_record */
    char text[40]; /* why its queue failed, for people to read */
} xp_member;

typedef struct {
    uint64_t value, pending, lost, roster;
    uint32_t seq, waiters, async_waiters, cause;
    uint64_t blame;
    uint32_t device, guards;
    uint64_t facts[XP_FACTS];
    uint64_t attached[XP_MASK_WORDS];
} xp_words;

typedef struct { /* of a table's entry, also written by processes that have it open */
    int32_t left; /* counted: the opens that are left; pickled: the pickles that are still to be opened */
    uint32_t marks; /* XP_MARK_…; an export begins with none */
    uint64_t renewed; /* pickled: the deadline that the process that passed it on has set */
} xp_opens;

typedef struct { /* which members may signal a slot's future points, as far as `roster` does not say otherwise */
    uint64_t signallers[XP_MASK_WORDS];
    uint64_t candidates[XP_MASK_WORDS];
} xp_roles;

typedef struct {
    uint32_t entry, first;
    uint64_t generation;
    uint8_t nonce[16];
} xp_wanted;

typedef struct { /* of a packet: as many of `wanted` as fit in its bytes */
    char magic[4]; /* XPSQ */
    uint32_t op;
    uint8_t cookie[XP_COOKIE];
    xp_wanted wanted[XP_FDS_AT_ONCE];
} xp_request;

typedef struct {
    uint32_t status, count, total;
} xp_given;

typedef struct { /* likewise; each entry's fds follow those of the entry before */
    char magic[4]; /* XPSR */
    xp_given given[XP_FDS_AT_ONCE];
} xp_reply;

_Static_assert(sizeof(xp_handle) == 256 && offsetof(xp_handle, seal) == 224, "handle");
_Static_assert(sizeof(xp_message) == 48 && sizeof(xp_leaf) == 24, "message");
_Static_assert(sizeof(xp_entry) == 256 && offsetof(xp_entry, payload) == 128, "entry");
_Static_assert(XP_TABLE_HEADER + XP_ENTRIES * sizeof(xp_entry) == XP_TABLE_DEADLINES, "entries fit");
_Static_assert(XP_TABLE_DEADLINES + XP_ENTRIES * sizeof(uint64_t) == XP_TABLE_LABELS, "deadlines fit");
_Static_assert(sizeof(xp_label) == 64 && XP_TABLE_LABELS + XP_ENTRIES * sizeof(xp_label) == XP_TABLE_SIZE, "labels fit");
_Static_assert(sizeof(xp_member) == 64, "member");
_Static_assert(sizeof(xp_words) == 256 && offsetof(xp_words, attached) == 128, "slot");
_Static_assert(sizeof(xp_roles) == 256, "roles");
_Static_assert(XP_MEMBERS < XP_ROSTER_JOINED >> XP_ROSTER_JOINED_BIT, "a member fits in a roster");
_Static_assert(offsetof(xp_request, wanted) == 24 && sizeof(xp_wanted) == 32, "requests");
_Static_assert(offsetof(xp_reply, given) == 4 && sizeof(xp_given) == 12, "replies");
/* Pages have up to 64 KiB. Table and commons are each mapped as a whole. Drivers also map the slots alone. */
_Static_assert(XP_COMMONS_SLOTS % 0x10000 == 0 && XP_COMMONS_USERS % 0x10000 == 0 &&
                   XP_COMMONS_SIZE % 0x10000 == 0, "whole pages");
_Static_assert(XP_COMMONS_MEMBERS + XP_MEMBERS * sizeof(xp_member) <= XP_COMMONS_HOLDERS, "members fit");
_Static_assert(XP_COMMONS_HOLDERS + XP_ENTRIES * (XP_MEMBERS / 8) == XP_COMMONS_OPENS, "holders fit");
_Static_assert(XP_COMMONS_OPENS + XP_ENTRIES * sizeof(xp_opens) == XP_COMMONS_ROLES, "opens fit");
_Static_assert(XP_COMMONS_ROLES + XP_SLOTS * sizeof(xp_roles) == XP_COMMONS_PICKLES, "roles fit");
_Static_assert(XP_COMMONS_PICKLES + XP_SLOTS * sizeof(uint64_t) == XP_COMMONS_SLOTS, "pickles fit");
_Static_assert(XP_COMMONS_SLOTS + XP_SLOTS * sizeof(xp_words) == XP_COMMONS_USERS, "slots fit");
_Static_assert(XP_COMMONS_USERS + XP_ENTRIES * (XP_MEMBERS / 8) == XP_COMMONS_SIZE, "users fit");

#endif
