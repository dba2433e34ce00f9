/* A channel: slots that writers fill and readers hold, and who has which. docs/channels-protocol.md says every step.
 *
 * All words but the bell change under one lock, whose owner may die at any moment: each step commits by one store, and
 * the next owner repairs what may be half done. Nothing that stands here leads a process outside of the memory whose
 * size it has checked itself: the geometry is copied when the channel is opened. */
#ifndef XP_CHANNEL_H
#define XP_CHANNEL_H

#include "lock.h"

#define XP_CHANNEL_SLOTS 4096u
#define XP_CHANNEL_SPARE 4u    /* slots for frames that no reader could finish */
#define XP_CHANNEL_TEXT 1024u  /* bytes that describe the channel, for whoever opens it */

enum { XP_FREE, XP_LOANED, XP_FULL, XP_FAILED }; /* a slot's state: the low three bits of `word` */
enum { XP_NO_JOB, XP_QUEUED, XP_TAKEN, XP_FINISHED_JOB };
enum { XP_MODE_NONE, XP_MODE_ALL, XP_MODE_NEWEST, XP_MODE_ONE };
enum { XP_BLOCK, XP_OVERWRITE, XP_RAISE }; /* on_full */
enum { XP_GONE_NONE, XP_GONE_FINISHED, XP_GONE_LOST }; /* how the last writer went */

typedef struct {
    uint64_t nbytes;       /* of a frame */
    uint32_t slots, spare; /* for frames; for dead letters */
    uint32_t writers, history, redeliver, on_full, meta_nbytes, text_nbytes;
    uint32_t device; /* 1: devices may work on frames, so a member's death counts once its process has ended */
    uint32_t reserved;
} xp_geometry;

#define XP_END_MODE 3u
#define XP_END_WRITER 4u
#define XP_END_FINISHED 8u

typedef struct {
    uint32_t role, reserved; /* XP_END_…; 0: nobody */
    uint64_t cursor;         /* a reader's: the seq of the next frame it has not seen */
    int64_t missed; /* negative: less the frames that were gone before it joined, from its cursor on */
    uint64_t got;
} xp_end_words;

typedef struct {
    _Alignas(64) uint64_t word; /* seq << 3 | state */
    uint64_t owner; /* of a loan: 1 + member */
    uint64_t holders[XP_CREW_MASK];
    uint64_t job; /* 1 + member << 8 | XP_QUEUED … */
    uint64_t nbytes, writer_pid;
    uint32_t meta_nbytes, text_nbytes; /* up to here one cache line; a plain frame changes no other */
    uint64_t point, since; /* after which its device has written the frame; of the member that joined then */
    uint32_t deliveries, point_by;
    uint64_t reads[XP_CREW_MEMBERS]; /* points of readers' devices, after which the slot may be written */
} xp_slot_words;

typedef struct {
    xp_lock_words lock;
    xp_bell bell;
    uint64_t next_seq;
    uint64_t group;        /* 1 + the first seq that readers in mode "one" share; 0: there has been none */
    uint64_t group_missed, failed;
    _Alignas(64) uint32_t changes; /* one more after each; alone, since whoever spins looks at nothing else */
    uint32_t listeners;
    _Alignas(64) uint64_t lost_pid;
    uint32_t last_gone, top; /* top: no member at or above it was ever an end */
    xp_geometry geometry;
    char text[XP_CHANNEL_TEXT];
    uint32_t moved; /* 1: the slots ended with their maker, and there is, or will be, another channel of this name */
    uint8_t room[444];
    xp_end_words ends[XP_CREW_MEMBERS];
    xp_slot_words slots[];
} xp_channel_words;

/* One end of a channel in this process. */
typedef struct {
    xp_crew *c;
    xp_channel_words *w;
    xp_geometry g;
    uint32_t m;
    int mode, closed;
    bool reconnect;
    bool reads;          /* it has tried to receive */
    bool finished;       /* under the channel's lock */
    int credit;          /* spins that may still be in vain */
    uint64_t pid;
    uint64_t loaned_by;  /* the thread that has a loan, 0: none; under the channel's lock */
} xp_end;

/* The outcome of an attempt. */
enum {
    XP_GOT = 1,
    XP_WAIT,      /* nothing yet */
    XP_OVER,      /* the stream has ended, and nothing is left */
    XP_LOST_END,  /* the last writer went without saying that it had finished */
    XP_NO_ROOM,   /* on_full "raise" */
    XP_TWICE,     /* this thread has a loan already */
    XP_NO_WRITER, /* there is no room for one more writer */
    XP_SAID_END,  /* this end has said that it had finished */
    XP_MOVED,     /* the channel has ended with its slots: there is, or will be, another one of its name */
    XP_UNUSABLE   /* the lock is not to be had: look at the crew and at signals, and try again */
};

typedef struct {
    uint32_t slot, deliveries, meta_nbytes, text_nbytes, point_by;
    uint64_t seq, missed, nbytes, writer_pid, point, since;
} xp_frame;

uint64_t xp_channel_nbytes(const xp_geometry *g); /* of all words; 0: no channel can be so */
void xp_channel_begin(xp_crew *c, const xp_geometry *g, const char *text, uint32_t n); /* fresh words */
bool xp_channel_geometry(const xp_crew *c, xp_geometry *g);                            /* false: they do not fit */
void xp_channel_move(xp_crew *c); /* the slots have ended; for words whose geometry was read */

/* With the join byte. 0 or errno. `writer`: one more writer, EBUSY where there is no room. `mode`: of a reader, or none. */
int xp_end_join(xp_end *e, xp_crew *c, const xp_geometry *g, const char *label, int mode, bool oldest, bool writer);
void xp_end_leave(xp_end *e);

/* In this thread, what follows does not wait for the lock: XP_UNUSABLE where it is not free. */
extern _Thread_local bool xp_end_hurry;

/* All these take the lock, and wait for nothing else. */
int xp_end_become_writer(xp_end *e);
int xp_end_loan(xp_end *e, uint32_t *slot);
void xp_end_fill(xp_end *e, uint32_t slot, const char *meta, uint32_t meta_nbytes, const char *text, uint32_t text_nbytes);
int xp_end_send(xp_end *e, uint32_t slot, uint64_t nbytes, uint64_t point, uint64_t *seq);
int xp_end_drop(xp_end *e, uint32_t slot);
int xp_end_receive(xp_end *e, xp_frame *frame, bool take); /* `take` false: only whether there is one */
uint64_t xp_end_unread(const xp_end *e); /* of a channel that has moved: frames that this end would have got or counted as missed */
int xp_end_release(xp_end *e, uint32_t slot, bool done, uint64_t point);
int xp_end_failed(xp_end *e, xp_frame *frame);
int xp_end_finish(xp_end *e);
const char *xp_end_meta(const xp_end *e, uint32_t slot); /* the text follows after g.meta_nbytes */

/* Before a sleep: have deaths ring the bell, and take the dead out. How often to look: as xp_crew_watch; XP_CREW_GONE:
 * something has changed, look again at once. */
int xp_end_watch(xp_end *e);
/* Spin, then sleep once at most, unless something has changed since `changes` was read. */
int xp_end_sleep(xp_end *e, uint32_t changes, uint64_t end);
void xp_end_listen(xp_end *e); /* the next change is to be told by the file */

#endif
