/* A channel: slots that writers fill and readers hold, and the record of who has which slot.
 * docs/channels-protocol.md has every step.
 *
 * All words but the bell change under one lock, whose owner may die at any moment. So each step commits by a single
 * store, and the next owner repairs what may be half done. No value in these words can lead a process outside the
 * memory whose size it has checked itself: the geometry is copied when the channel is opened. */
#ifndef XP_CHANNEL_H
#define XP_CHANNEL_H

#include "lock.h"

#define XP_CHANNEL_SLOTS 4096u
#define XP_CHANNEL_SPARE 4u    /* slots for frames that no reader could finish */
#define XP_CHANNEL_TEXT 1024u  /* bytes that describe the channel to processes that open it */

enum { XP_FREE, XP_LOANED, XP_FULL, XP_FAILED }; /* a slot's state: the low three bits of `word` */
enum { XP_NO_JOB, XP_QUEUED, XP_TAKEN, XP_FINISHED_JOB };
enum { XP_MODE_NONE, XP_MODE_ALL, XP_MODE_NEWEST, XP_MODE_ONE };
enum { XP_BLOCK, XP_OVERWRITE, XP_RAISE }; /* on_full */
enum { XP_DROP, XP_WAIT_FOR_READERS, XP_RAISE_WITHOUT }; /* on_no_readers */
enum { XP_NO_READER_YET, XP_READER_CLOSED, XP_READER_DIED }; /* how the last reader ended */
enum { XP_GONE_NONE, XP_GONE_FINISHED, XP_GONE_LOST }; /* how the last writer ended */

typedef struct {
    uint64_t nbytes;       /* of a frame */
    uint32_t slots, spare; /* the number of slots for frames, and of slots for dead letters */
    uint32_t writers, history, redeliver, on_full, on_no_readers, meta_nbytes, text_nbytes;
    uint32_t device; /* 1: devices may work on frames, so a member's death counts once its process has ended */
    uint32_t ends;   /* the most writers and readers */
} xp_geometry;

#define XP_END_MODE 3u
#define XP_END_WRITER 4u
#define XP_END_FINISHED 8u

typedef struct {
    uint32_t role, member; /* role: XP_END_…, member: 1 + that of its process; 0: nobody */
    uint64_t since;        /* when that member joined the group, which tells it from others with the same number */
    uint64_t cursor;       /* of a reader: the seq of the next frame that it has not seen */
    int64_t missed; /* from its cursor on; negative by the frames that were gone before it joined */
    uint64_t got, began; /* began: tells the end from others with the same index */
} xp_end_words;

#define XP_END_LABEL 64u

typedef struct { /* of an end; for people to read, and for channels on devices */
    char label[XP_END_LABEL];
    uint8_t event[sizeof(xp_handle)]; /* the handle of its event; zeros: none */
} xp_end_card;

typedef struct {
    _Alignas(64) uint64_t word; /* seq << 3 | state */
    uint32_t owner, writer_pid; /* owner: of a loan, 1 + end */
    uint64_t holders[2]; /* ends; those from 128 on follow the reads */
    uint64_t job; /* 1 + end << 8 | XP_QUEUED … */
    uint64_t nbytes, time_ns; /* time_ns: CLOCK_MONOTONIC at the send */
    uint32_t meta_nbytes, text_nbytes; /* up to here one cache line: a plain frame changes no other */
    uint64_t point, since; /* the point after which the writer's device has written the frame, and when that end began */
    uint32_t deliveries, point_by;
    uint64_t reads[]; /* for each end, the point of its device after which the slot may be written; then more holders */
} xp_slot_words;

typedef struct {
    xp_lock_words lock;
    xp_bell bell;
    uint64_t next_seq;
    uint64_t group;        /* 1 + the first seq that readers in mode "one" share, or 0 if there was none */
    uint64_t group_missed, failed;
    _Alignas(64) uint32_t changes; /* grows by one with each change; on a cache line of its own, since a spinning process reads nothing else */
    uint32_t listeners;
    _Alignas(64) uint64_t lost_pid;
    uint64_t dead_reader;  /* the pid of the last reader, if it died */
    uint32_t last_reader, reserved;
    uint32_t last_gone, top; /* top: no end at or above it was ever used */
    xp_geometry geometry;
    char text[XP_CHANNEL_TEXT];
    uint32_t moved; /* 1: the slots ended with their maker, and another channel of this name exists or will exist */
    uint64_t begun; /* how many ends have begun */
} xp_channel_words; /* then the ends, the slots, their metadata, and the cards of the ends */

/* One end of a channel in this process. */
typedef struct {
    xp_group *c;
    xp_channel_words *w;
    xp_end_words *ends;
    char *slots;
    size_t slot_nbytes;
    xp_geometry g;
    uint32_t m; /* its index among the ends */
    int mode, closed;
    bool reconnect;
    bool reads;          /* whether it has tried to receive */
    bool finished;       /* under the channel's lock */
    int credit;          /* how many spins may still fail */
    uint32_t pid;
    uint64_t lost; /* frames whose writer's device had not finished when it died */
    uint64_t seen; /* what `missed` was with the frame before */
    uint64_t looked;     /* when a loan has last looked whether readers are dead */
    uint64_t loaned_by;  /* the thread that has a loan, or 0; protected by the channel's lock */
} xp_end;

/* The result of an attempt. */
enum {
    XP_GOT = 1,
    XP_WAIT,      /* nothing yet */
    XP_OVER,      /* the stream has ended, and no frame is left */
    XP_LOST_END,  /* the last writer ended without calling `finish` */
    XP_NO_ROOM,   /* on_full "raise" */
    XP_TWICE,     /* this thread has a loan already */
    XP_NO_WRITER, /* there is no room for another writer */
    XP_SAID_END,  /* this end has called `finish` */
    XP_READERS_LEFT, /* on_no_readers "raise": the last reader has closed the channel */
    XP_READERS_LOST, /* the last reader has died */
    XP_MOVED,     /* the channel has ended with its slots: another one of its name exists or will exist */
    XP_UNUSABLE   /* the lock is busy: check the group and pending signals, and try again */
};

typedef struct {
    uint32_t slot, deliveries, meta_nbytes, text_nbytes, point_by, writer_pid;
    uint64_t seq, missed, gap, nbytes, point, since, time_ns;
} xp_frame;

uint64_t xp_channel_nbytes(const xp_geometry *g); /* the size of the group's memory, or 0 if the geometry is impossible */
void xp_channel_begin(xp_group *c, const xp_geometry *g, const char *text, uint32_t n); /* fresh words */
bool xp_channel_geometry(const xp_group *c, xp_geometry *g);                            /* false if they do not fit */
void xp_channel_move(xp_group *c); /* the slots have ended; for words whose geometry was read */

/* Returns 0 or errno: ENOSPC if there is no room for another end, EAGAIN if the channel's lock is taken. `writer` adds a
 * writer; EBUSY if there is no room. `mode` is a reader's, or none. */
int xp_end_join(xp_end *e, xp_group *c, const xp_geometry *g, const char *label, int mode, bool oldest, bool writer);
void xp_end_leave(xp_end *e);

/* From now on, this thread does not wait for the lock: it gets XP_UNUSABLE if the lock is taken. */
extern _Thread_local bool xp_end_hurry;

/* All of these take the lock. They wait for nothing else. */
int xp_end_become_writer(xp_end *e);
int xp_end_loan(xp_end *e, uint32_t *slot);
void xp_end_fill(xp_end *e, uint32_t slot, const char *meta, uint32_t meta_nbytes, const char *text, uint32_t text_nbytes);
int xp_end_send(xp_end *e, uint32_t slot, uint64_t nbytes, uint64_t point, uint64_t *seq);
int xp_end_drop(xp_end *e, uint32_t slot);
int xp_end_receive(xp_end *e, xp_frame *frame, bool take); /* with `take` false, only report whether there is one */
uint64_t xp_end_unread(const xp_end *e); /* of a channel that has moved: frames that this end would have received or counted as missed */
int xp_end_release(xp_end *e, uint32_t slot, bool done, uint64_t point);
int xp_end_failed(xp_end *e, xp_frame *frame);
int xp_end_finish(xp_end *e);
const char *xp_end_meta(const xp_end *e, uint32_t slot); /* the text follows after g.meta_nbytes */
xp_end_card *xp_end_card_of(const xp_end *e, uint32_t end);
uint32_t xp_end_of_member(const xp_end *e, uint32_t end); /* the member whose end it is; XP_GROUP_NOBODY: nobody's */
uint64_t xp_end_read_point(const xp_end *e, uint32_t slot, uint32_t end);
/* An end that only looks, and has no index: for what follows here, and the words. */
void xp_end_look(xp_end *e, xp_group *c, const xp_geometry *g);
static inline xp_slot_words *xp_slot_words_at(const xp_end *e, uint32_t i) { return (xp_slot_words *)(e->slots + i * e->slot_nbytes); }
bool xp_end_holds(const xp_end *e, uint32_t slot, uint32_t end);
void xp_end_count(xp_end *e, uint32_t *readers, uint32_t *writers); /* those whose processes live */

/* Call this before sleeping. It has deaths ring the bell, and removes dead members. Returns how often to check, as
 * xp_group_watch does, or XP_GONE if something has changed, so that the caller checks again at once. */
int xp_end_watch(xp_end *e);
/* Spin, then sleep at most once, unless something has changed since `changes` was read. */
int xp_end_sleep(xp_end *e, uint32_t changes, uint64_t end);
void xp_end_stir(xp_end *e);   /* have all that sleep check again */
void xp_end_listen(xp_end *e); /* have the file report the next change */

#endif
