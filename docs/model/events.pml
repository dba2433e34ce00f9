/* The event protocol of docs/events-protocol.md, one slot.  See README.md.
 *
 * Every atomic { A(me); ... } is one access to shared memory (or one system call) by one live process; what else stands in
 * it touches only the process's own variables and ghosts.  A process stops for ever between any two of them when killed.
 */
#ifndef N
#define N 2                 /* member processes */
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef M
#define M 3                 /* highest point looked at */
#endif
#ifndef PROG0
#define PROG0 0
#endif
#ifndef PROG1
#define PROG1 0
#endif
#ifndef PROG2
#define PROG2 0
#endif
#ifndef PROG3
#define PROG3 0
#endif
#ifndef START
#define START 255           /* mask of those attached to the slot at the start */
#endif
#ifndef MORTAL
#define MORTAL 255
#endif
#ifndef WARDENS
#define WARDENS 255         /* mask of members whose warden reaps */
#endif
#ifndef QUEUES
#define QUEUES 255          /* mask of members with a queue */
#endif
#ifndef DEVICE
#define DEVICE 0            /* mask of members whose queue is a device's: completes by a plain store */
#endif
#ifndef STUCK
#define STUCK 0             /* mask of members whose queue runs for ever */
#endif
#ifndef FACTS
#define FACTS 2
#endif
#ifndef ORPHANED
#define ORPHANED 0          /* 1: a candidate died here before */
#endif
#ifndef DECLARED
#define DECLARED 0          /* mask of those who open the event with signals=True */
#endif
#ifndef ONLY
#define ONLY 0              /* mask of those who open it with signals=False */
#endif
#ifndef MAXOUT
#define MAXOUT 3
#endif
#ifndef BEHIND
#define BEHIND 0            /* mask of members whose device waits for point 1 here, and signals another slot behind */
#endif
#ifndef LATE
#define LATE 0              /* mask of members whose device waits elsewhere before its first signal here, in vain */
#endif

#ifndef TAKEN
#define TAKEN 0             /* mask of members whose reap byte somebody else holds, perhaps for good */
#endif

#define BIT(x) (1 << (x))
#define A(x)   alive[x]
#ifdef RECHECK
#define RECHECKS 255
#else
#define RECHECKS 0
#endif
#define FREE 0
#define ATTACHED 1
#define NONE 15

/* ---- the slot and the commons ---- */
byte value;
byte pP; bit pI; byte pM = NONE;        /* one word: pending */
byte lhi, llo;                          /* one word: lost */
short ro = ORPHANED;                    /* one word, roster: loss + 4 ever + 8 joined + 64 changes */
bit waiters;
byte att;                               /* attached */
byte sg, cd;                            /* signallers, candidates */
byte fp[FACTS]; byte fm[FACTS];         /* one word each */
byte guards;                            /* processes that guard waits of devices for points here */
#if LATE
bit late;                               /* a device's store of a lost point may come late */
#endif
#ifdef PICKLE
byte hope = 1;                          /* one word, pickles: bit 0, one waits for its first open; bit 1, somebody has opened the event */
bit due;                                /* its time is over */
bit pk = 1;                             /* ghost: whoever opens it may come yet */
#define ALONE(x) ((x) && !pk)         /* nobody who opens a pickle may come */
#else
#define ALONE(x) x
#endif
byte state[N];
bool life[N];                           /* the life byte: held by its member, or by nobody */
byte reapb[N];                          /* the reap byte: 0, or 1 + the process that holds it */

/* seq, seen from each sleeper: bit set = bumped since that process last read it.  asleep: queued on the futex */
byte chg, asleep;

/* ---- processes ---- */
bool alive[N];
byte target[N];                         /* the point that the main thread waits for */
byte qn[N]; byte qp[N]; byte qc[N];     /* queue: points submitted (at most 2), first, chain-wait target of the first */
byte qp2[N]; byte qc2[N];
byte qhost[N];                          /* bit k: k-th is completed by the host */
byte chained[N];                        /* the newest own point that was completed by the host because it was chained */
bool qoff[N];
byte again[N];                          /* 1 + value when the reap of this member was put off */
byte watched[N];
byte once[N];
byte bell;                              /* rung since that member's warden looked */
byte rechecked;                         /* sleepers that looked again since the last death was seen */
byte gp[N];                             /* the future point that the device of this member waits for */
#if LATE
bit gate;                               /* what the device waits for elsewhere lets it go */
#endif
#if BEHIND
bit gin[N];                             /* counted in `guards` */
bit gnode[N];                           /* its warden knows of the guard */
bit dwait[N];                           /* the device's wait for point 1 is queued */
bit dpast[N];                           /* it was let go */
bit bsub[N];                            /* its signal of the other slot is submitted */
bit bchain[N];                          /* ... before the loss of point 1 was noticed by this process */
bit blost[N];                           /* ... and lost */
bit served[N];                          /* this process has lost what its device has queued behind */
#endif
#ifdef CASCADE                          /* the other slot of member 0, on whose point the device of member 2 waits; its own behind */
byte bval; bit bl; byte bguards;        /* value; the point is lost; guards */
bit bgin, bgnode, bdwait, bdpast, bbsub, bbchain, bblost, bserved;
#endif

/* ---- ghosts ---- */
byte gmax;                              /* highest point that truly completed */
byte geff;
byte st[M+1];                           /* 0 future 1 pending 2 done 3 lost */
byte own[M+1];                          /* who submitted; NONE: a host signal or nobody */
bool odead[M+1];                        /* its owner died (or left) owing it */
byte budget = DEATHS;
byte gs, gc;                            /* signallers and candidates that live, whatever has been written of them so far */
bit gever, gsd, gcd = ORPHANED;         /* there was a signaller; one died; a candidate died that counted */
byte gsj, gcj;                          /* who joined since */
byte gcl; bit amb;                      /* who is just joining or closing; a death may count before or after that */
#if TAKEN
byte gt;                                /* a waiter that could not reap was told that points up to this one are lost, and could record it */
#endif
byte gw;                                /* to whom a future point may be said to be lost: it was since they began to look */

#if N == 2
#define ALIVE (alive[0] + 2 * alive[1])
#elif N == 3
#define ALIVE (alive[0] + 2 * alive[1] + 4 * alive[2])
#else
#define ALIVE (alive[0] + 2 * alive[1] + 4 * alive[2] + 8 * alive[3])
#endif
#define CANDIDATE 1
#define SIGNALLER 2
#define LOSS(w)   ((w) & 3)
#define EVER(w)   (((w) & 4) != 0)
#define JOINED(w) (((w) >> 3) & 7)
#define NEXT      64
#define ROSTER(w, l, j) (((w) & ~63) | ((w) & 4) | (l) | ((j) << 3))
#define GONE(i)   ((i) != 0 && !alive[0])

/* The rule, at once: may, must a future point be lost to i?  Between them: a death that is noticed only after somebody joined or closed */
#define BUT(m, i) ((m) & ~BIT(i))
#define SLOSS(i)  (gsd && BUT(gsj, i) == 0)
#define CLOSS(i)  (amb || (gcd && BUT(gcj, i) == 0))
#define LAG       (((sg | cd) & ~ALIVE) != 0)
#define MAY(i)    (BUT(gs, i) == 0 && (SLOSS(i) || (amb && gsd) || (gs != 0 && (CLOSS(i) || GONE(i))) || \
                   (gs == 0 && ((GONE(i) && gever) || (BUT(gc, i) == 0 && (ALONE(CLOSS(i)) || GONE(i)))))))
#define MUST(i)   (BUT(gs, i) == 0 && ((SLOSS(i) && !amb) || (gs != 0 && GONE(i)) || \
                   (gs == 0 && ((GONE(i) && gever) || (BUT(gc, i) == 0 && (ALONE((gcd && !amb && gcj == 0)) || GONE(i)))))))
inline spec() {
  t = 0;
  do
  :: t < N -> if :: MAY(t) -> gw = gw | BIT(t) :: else fi; t++
  :: else -> break
  od;
  t = 0
}
inline gone_ghost(i, death) {           /* it dies, or closes */
  if :: death && (gcl & ~BIT(i)) -> amb = 1 :: else fi;
  if
  :: death && (gs & BIT(i)) -> gsd = 1; gsj = 0
  :: death && !(gs & BIT(i)) && (gc & BIT(i)) && gs == 0 && (!gsd || gsj) -> gcd = 1; gcj = 0
  :: else
  fi;
  gs = gs & ~BIT(i); gc = gc & ~BIT(i); gcl = gcl & ~BIT(i)
}

hidden byte t, u, tc, tn, te, tb, to;
hidden byte tx;

inline chk() {                          /* after every change of value, pending or lost */
  d_step {
    tc = value;
    if :: pI && pP > tc -> tc = pP :: else fi;
    te = (tc > lhi -> tc : lhi);
    assert(te >= geff);                 /* property 4: never back */
    geff = te;
    assert(te <= pP);
    t = 1; tx = false;
    do
    :: t <= M ->
       if
       :: tc > lhi -> tn = (t <= tc -> 2 : (t <= pP -> 1 : 0))
       :: else -> tn = (t <= llo -> 2 : (t <= lhi -> 3 : (t <= pP -> 1 : 0)))
       fi;
       if :: odead[t] && t > gmax -> tx = true :: else fi;
       assert(!(st[t] == 2 && tn != 2));              /* done stays done */
       assert(!(st[t] == 3 && tn < 2));               /* lost stays lost, or is healed */
       assert(tn != 2 || t <= gmax);                  /* property 3: nothing invented */
       assert(tn != 3 || t > gmax);                   /* property 2: nothing lost that completed */
       assert(tn != 3 || tx);                         /* ... nor without an owner's death at or before it */
       st[t] = tn; tn = 0;
       t++
    :: else -> break
    od;
    t = 0; tc = 0; te = 0; tx = false
  }
}

/* read the state: L, P, C, L.  locals: h o (lost) p pi pm (pending) v c (value) ef g */
#define COMPLETED if :: n > lhi && n > gmax -> gmax = n :: else fi
inline rd() {
  do
  :: atomic { A(me) -> h = lhi; o = llo; g = gmax }
     atomic { A(me) -> p = pP; pi = pI; pm = pM }
     atomic { A(me) -> v = value }
     atomic { A(me) -> if
       :: lhi == h && llo == o ->
          c = v; if :: pi && p > c -> c = p :: else fi;
          ef = (c > h -> c : h); break
       :: else fi }
  od
}
#define ISDONE(n) ((c > h && n <= c) || (c <= h && n <= o))
#define ISLOST(n) (c <= h && n > o && n <= h)
#define OUT (p > ef -> p - ef : 0)

inline raise(n) {                       /* upward only */
  do
  :: atomic { A(me) -> v = value; if :: v >= n -> break :: else fi }
     atomic { A(me) -> if :: value == v -> value = n; chk(); break :: else fi }
  od
}

#if LATE && !defined(NO_FLOOR)
inline complete(n) {                    /* a swap of one word that depends on it alone: tried again is tried once */
  atomic { A(me) -> x = late }
  if
  :: atomic { A(me) && x -> x = 0; if :: lhi < n -> COMPLETED; lhi = n; llo = n; chk() :: else fi }
  :: !x
  fi;
  raise(n)
}
#else
#define complete(n) raise(n)
#endif

inline wakeall() {                      /* reap: without looking at the flag */
  atomic { A(me) -> waiters = 0 }
  atomic { A(me) -> chg = 255 }         /* seq += 1 */
  atomic { A(me) -> asleep = 0 }        /* futex_wake(all) */
}

inline wake() {
  atomic { A(me) -> x = waiters }
  if
  :: atomic { A(me) && x -> x = waiters; waiters = 0 }
     if
     :: atomic { A(me) && x -> x = 0; chg = 255 }
        atomic { A(me) -> asleep = 0 }
     :: !x
     fi
  :: !x
  fi
}

/* the lowest outstanding point that member d owes -> q; 0 none.  Leaves a fresh state in h o p pi pm c ef */
inline low(d) {
  do
  :: rd();
     if
     :: OUT == 0 -> q = 0; break
     :: else ->
        x = 0;
        do
        :: x < FACTS -> atomic { A(me) -> lfp[x] = fp[x]; lfm[x] = fm[x]; x++ }
        :: else -> break
        od;
        atomic { A(me) -> x = 0; if      /* facts are kept while their point is outstanding: look whether it still was */
          :: lhi == h && llo == o -> if
             :: value == v ->
                d_step {
                  q = 0; t = ef + 1;
                  do
                  :: t <= p && q == 0 ->
                     tb = 99; to = pm; u = 0;
                     do
                     :: u < FACTS ->
                        if :: lfp[u] >= t && lfp[u] < tb -> tb = lfp[u]; to = lfm[u] :: else fi; u++
                     :: else -> break
                     od;
                     if :: to == d -> q = t :: else fi; t++
                  :: else -> break
                  od;
#ifdef LOSE_ALL                         /* as first written: whoever owes anything loses everything outstanding */
                  if :: q -> q = ef + 1 :: else fi;
#endif
                  t = 0; tb = 0; to = 0; u = 0;
                  lfp[0] = 0; lfm[0] = 0; lfp[FACTS-1] = 0; lfm[FACTS-1] = 0
                };
                break
             :: else fi
          :: else fi }
     fi
  od
}

#define LIVES(z) life[z]
/* how many members other than `not` of the mask k hold their life byte -> y */
inline living(not) {
  y = 0; z = 0;
  do
  :: z < N && z != not && (k & BIT(z)) -> atomic { A(me) -> y = y + life[z]; z++ }      /* F_GETLK */
  :: z < N && !(z != not && (k & BIT(z))) -> z++
  :: z >= N -> break
  od;
  atomic { z = 0; k = 0 }
}

#if TAKEN
/* before it sleeps, a waiter would reap those that it relies on: whose reap byte is taken? -> rt */
inline unreapable() {
  rt = 0; z = 0;
  do
  :: z < N && z != me -> atomic { A(me) -> if :: !life[z] && state[z] != FREE && reapb[z] != 0 -> rt = rt | BIT(z) :: else fi; z++ }
  :: z == me -> z++
  :: z >= N -> break
  od;
  z = 0
}
/* is one of those that are relied on dead, and could not be reaped? -> y */
inline unreaped() {
  atomic { A(me) -> k = sg }
  if :: k == 0 -> atomic { A(me) -> k = cd } :: else fi;
  k = k & rt; z = 0;
  do
  :: z < N && (k & BIT(z)) && !y -> atomic { A(me) -> y = (!life[z] && state[z] != FREE); z++ }
  :: z < N && !(k & BIT(z)) && !y -> z++
  :: z >= N || y -> break
  od;
  atomic { z = 0; k = 0 }
}
/* a waiter that cannot reap d loses by itself what d owes, if that is the lowest outstanding point q */
inline lose_for(q) {
  do
  :: atomic { A(me) -> w = ro }
     if
     :: atomic { A(me) && ro == w -> ro = ROSTER(w, SIGNALLER, 0) + NEXT } break
     :: atomic { A(me) && ro != w -> skip }
     fi
  od;
  w = 0;
  do
  :: rd();
     if
     :: OUT == 0 -> raise(ef); break
     :: OUT && ef + 1 != q -> break
     :: OUT && ef + 1 == q ->
        if
        :: atomic { A(me) && lhi == h && llo == o -> llo = (c > h -> c : o); lhi = p; chk(); }
           raise(p); wake(); break
        :: atomic { A(me) && !(lhi == h && llo == o) -> skip }
        fi
     fi
  od
}
#endif

#ifdef PICKLE
/* may the opener of a pickle come yet? -> aw.  If its time is over, it counts as a candidate that died */
inline unopened() {
  atomic { A(me) -> u8 = hope }
  atomic { A(me) -> x = due }
  if
  :: (u8 & 1) && x ->
     do
     :: u8 & 2 -> break
     :: !(u8 & 2) ->
        atomic { A(me) -> w = ro }
        atomic { A(me) -> z = hope & 2 }
        atomic { A(me) -> k = sg }
        if
        :: z || k || (LOSS(w) == SIGNALLER && JOINED(w) == 0) -> break
        :: else ->
           if
           :: atomic { A(me) && ro == w -> ro = ROSTER(w, CANDIDATE, 0) + NEXT } break
           :: atomic { A(me) && ro != w -> skip }
           fi
        fi
     od;
     atomic { A(me) -> if :: hope == u8 -> hope = 0 :: else fi }
     aw = 0
  :: else -> aw = u8 & 1
  fi;
  atomic { u8 = 0; x = 0; z = 0; k = 0; w = 0 }
}
#endif

/* is a point above p lost to this process? -> y.  In: p */
inline future() {
  y = 0;
#ifdef PICKLE
  unopened();
#endif
  atomic { A(me) -> w = ro }
#ifdef NO_EXPORTER                      /* mutant: nobody minds that the exporter is gone */
  x = 0;
#else
  atomic { A(me) -> x = (me != 0 && !life[0]) }
#endif
#if TAKEN && !defined(NO_UNREAPED)      /* mutant: who could not be reaped does not count */
  unreaped();
#endif
  if
#if TAKEN
  :: x || y || (LOSS(w) && (JOINED(w) == 0 || JOINED(w) == me + 1)) ->
#else
  :: x || (LOSS(w) && (JOINED(w) == 0 || JOINED(w) == me + 1)) ->
#endif
#ifdef READERS_COUNT                    /* mutant: whoever has it open */
     atomic { A(me) -> k = att }
#else
     atomic { A(me) -> k = sg }
     if
     :: k == 0 && !(LOSS(w) == SIGNALLER && (JOINED(w) == 0 || JOINED(w) == me + 1)) && !(x && EVER(w)) ->
        atomic { A(me) -> k = cd }
#ifdef PICKLE
        atomic { y = aw && !x; u8 = 1 }
#endif
     :: else
     fi;
#endif
#ifdef PICKLE
     if :: y -> k = 0 :: else -> living(me) fi;
#ifndef ONE_LOOK                        /* mutant: who came while the last one died is not seen */
     if
     :: y == 0 -> atomic { A(me) -> k = (u8 -> cd : sg) } living(me)
     :: else
     fi;
#endif
     u8 = 0;
#else
     living(me);
#endif
     if
     :: y == 0 ->
#ifdef ROSTER_ONCE                      /* mutant: somebody came, signalled and went meanwhile */
        y = 1
#else
        atomic { A(me) -> y = (ro == w) }
        if :: y -> atomic { A(me) -> y = (pP == p) } :: else fi
#endif
     :: else -> y = 0
     fi
  :: else
  fi;
  atomic { x = 0; w = 0 }
#ifdef PICKLE
  aw = 0
#endif
}

/* this process may signal (0), or does (1) */
#define JOINGHOST(sig) d_step { \
    if :: LAG -> amb = 1 :: else fi; gcl = gcl | BIT(me); \
    if :: sig -> if :: gsd -> gsj = gsj | BIT(me) :: else fi; \
                 if :: gcd && BUT(gc, me) -> gcd = 0; gcj = 0 :: gcd && !BUT(gc, me) -> gcj = gcj | BIT(me) :: else fi; \
                 gs = gs | BIT(me); gever = 1 \
       :: else -> if :: gcd && gs == 0 -> gcj = gcj | BIT(me) :: else fi; gc = gc | BIT(me) \
    fi; spec() }
#define JOINBIT(sig) atomic { A(me) -> if :: sig -> sg = sg | BIT(me) :: else -> cd = cd | BIT(me) fi; JOINGHOST(sig) }
inline join(sig) {
  JOINBIT(sig)
#if defined(PICKLE) && !defined(NO_OPENED)      /* mutant: nobody learns that it was opened */
  if :: sig || me == 0 :: else -> atomic { A(me) -> hope = (hope -> hope | 2 : 0) } fi;
#endif
  do
  :: atomic { A(me) -> w = ro }
     x = JOINED(w); n = LOSS(w); y = 0;
     if
     :: n == CANDIDATE && !(sig) -> atomic { A(me) -> if :: sg -> n = 0 :: else fi }   /* it does not count: leave the word */
     :: n == CANDIDATE && sig -> atomic { A(me) -> k = cd } living(me)
     :: else
     fi;
     if
#ifdef ENDS_OWN                         /* mutant: the loss ends for whoever joins, too */
     :: n -> n = 0; x = 0
#else
     :: n && ((x && x != me + 1) || y) -> n = 0; x = 0
     :: n && !((x && x != me + 1) || y) -> x = me + 1
#endif
     :: !n -> n = LOSS(w)
     fi;
     y = 0;
     if :: atomic { A(me) && ro == w -> ro = (ROSTER(w, n, x) | (sig -> 4 : 0)) + NEXT; gcl = gcl & ~BIT(me) } break
        :: atomic { A(me) && ro != w -> skip }
     fi
  od;
  atomic { n = 0; x = 0; w = 0 }
  wake()
}

/* the bits of a clean close.  Candidates that died before do not count when the last signaller closes */
inline closing() {
#ifndef NO_CLOSING
  atomic { A(me) -> k = sg; gcl = gcl | BIT(me) }
  if
  :: (k & BIT(me)) && BUT(k, me) == 0 ->
     atomic { A(me) -> k = cd }
     z = 0;
     do
     :: z < N && z != me && (k & BIT(z)) ->
        atomic { A(me) -> x = !life[z] }
        if :: atomic { A(me) && x -> cd = cd & ~BIT(z) } :: !x fi; x = 0; z++
     :: z < N && !(z != me && (k & BIT(z))) -> z++
     :: z >= N -> break
     od;
     atomic { z = 0; k = 0 }
  :: else -> k = 0
  fi;
#endif
  atomic { A(me) -> sg = sg & ~BIT(me); gcl = gcl & ~BIT(me); d_step { gs = gs & ~BIT(me); spec() } }
}

#ifdef ALWAYS_COUNTS                    /* mutant: candidates count, whoever signals */
#define COUNTS true
#else
#define COUNTS (BUT(k, d) == 0)
#endif
/* d goes: what the roster says of it.  b: what it owed was just lost */
inline parting(d, isdeath) {
  do
  :: atomic { A(me) -> w = ro }
     atomic { A(me) -> k = sg }
     atomic { A(me) -> z = ((cd & BIT(d)) != 0) }
     n = LOSS(w); x = JOINED(w);
     if :: x == d + 1 -> n = 0; x = 0 :: else fi;
     if
     :: b || (isdeath && (k & BIT(d))) -> n = SIGNALLER; x = 0
     :: !(b || (isdeath && (k & BIT(d)))) && isdeath && z && (n != SIGNALLER || x) && COUNTS -> n = CANDIDATE; x = 0
     :: else -> if :: x == JOINED(w) -> break :: else fi
     fi;
     if
     :: atomic { A(me) && ro == w -> ro = ROSTER(w, n, x) + NEXT } break
     :: atomic { A(me) && ro != w -> skip }
     fi
  od;
  atomic { n = 0; x = 0; w = 0; k = 0; z = 0; b = 0 }
}
#define ROLES(d) atomic { A(me) -> sg = sg & ~BIT(d) } atomic { A(me) -> cd = cd & ~BIT(d); d_step { if :: alive[d] -> gc = gc & ~BIT(d) :: else fi; spec() } }

inline lose() {
  do
  :: rd();
     if
     :: OUT == 0 ->
#ifndef LOSE_RETURNS
        raise(ef);
#endif
        break
     :: else ->
#ifdef SWAP_LOSE                        /* mutant: release before the record */
        raise(p);
#endif
        if
        :: atomic { A(me) && lhi == h && llo == o ->          /* lose 2 */
             llo = (c > h -> c : o); lhi = p; chk(); }
           raise(p);                                          /* lose 4 */
           wake();                                            /* lose 5 */
           break
        :: atomic { A(me) && !(lhi == h && llo == o) -> skip }
        fi
     fi
  od
}

/* what reap and exit do with the slot; q != 0 afterwards: put off, an earlier living signaller's point is outstanding */
inline leave(d, isdeath) {
  low(d);
  r = (q -> c + 1 : 0); b = 0;
  if
  :: q == ef + 1 && q != 0 -> lose(); q = 0; r = 0; b = 1     /* reap 3 a */
  :: else
  fi;
#ifndef WAKE_FIRST
  if :: !isdeath && !b -> closing() :: else fi;
  parting(d, isdeath);                                        /* reap 3 b */
  ROLES(d)
#endif
#ifndef NO_FINISH
  rd(); raise(ef);                                            /* reap 3 c */
#endif
#ifdef CLEAR_FIRST
  if :: q == 0 -> atomic { A(me) -> att = att & ~BIT(d) } :: else fi;
#endif
#ifdef FLAG_WAKE
  wake();
#else
  wakeall();                                                  /* reap 3 d */
#endif
#ifdef WAKE_FIRST                       /* mutant */
  parting(d, isdeath);
  ROLES(d)
#endif
#ifndef CLEAR_FIRST                                           /* reap 3 e */
  if :: q == 0 -> atomic { A(me) -> att = att & ~BIT(d) } :: else fi;
#endif
  atomic { k = r; r = 0; h = 0; o = 0; p = 0; pi = 0; pm = 0; v = 0; c = 0; ef = 0; g = 0; b = 0 }
}

#ifdef GUARDS
#define RING atomic { A(me) -> bell = 255 }
#else
#define RING
#endif
#if LATE && !defined(NO_MARK)           /* mutant: a plain store all the same */
#define MARKED late
#else
#define MARKED 0
#endif
#define OP(w) ((w >> (4 * pc)) & 15)
/* 1 host signal  2 queue signal  3 read  4..7 wait for point 1..4  8 attach  9 close  10 leave for good  11 the same or not
   12 abandon it (with ABANDONS)
   13, 14 the device waits for point 2, 3 */

proctype Main(byte me) {
#ifdef PICKLE
  byte u8; bit aw;
#endif
  byte pc, op, h, o, p, pm, v, c, ef, g, x, y, z, k, q, n, r;
  bit pi, b;
  short w;
  byte lfp[FACTS]; byte lfm[FACTS];
#if TAKEN
  byte rt;
#endif
next:
  atomic { A(me) ->
    op = (me == 0 -> OP(PROG0) : (me == 1 -> OP(PROG1) : (me == 2 -> OP(PROG2) : OP(PROG3))));
    pc++; h = 0; o = 0; p = 0; pi = 0; pm = 0; v = 0; c = 0; ef = 0; g = 0; n = 0; x = 0; q = 0; y = 0; z = 0 }
  if
  :: op == 0 -> goto stop

  :: op == 1 ->                         /* host signal */
     if :: !(sg & BIT(me)) -> join(1) :: else fi;             /* nobody else changes it */
     do
     :: rd();
        if
        :: OUT > 0 -> break             /* refused */
        :: else ->
           if
           :: atomic { A(me) && pP == p && pI == pi && pM == pm ->
                pP = p + 1; pI = 1; pM = me;
                assert(p + 1 > geff); if :: p + 1 <= M -> own[p+1] = NONE :: else fi;
#ifndef HOST_LATE
                gmax = p + 1; 
#endif
                chk() }
              raise(p + 1);
              wake();
              break
           :: atomic { A(me) && !(pP == p && pI == pi && pM == pm) -> skip }
           fi
        fi
     od; goto next

  :: op == 2 ->                         /* queue signal */
     if :: !(sg & BIT(me)) -> join(1) :: else fi;
     do
     :: rd();
        if :: pi && p > v -> complete(p) :: else fi;
        n = 0;
#ifndef NO_FACTS
        if
        :: OUT > 0 && pm != me ->
           x = 0; n = 1; k = NONE;
           do
           :: x < FACTS ->
              atomic { A(me) -> lfp[x] = fp[x]; lfm[x] = fm[x];
                if :: lfp[x] == p -> n = 0 :: lfp[x] != p && lfp[x] <= ef && k == NONE -> k = x :: else fi; x++ }
           :: else -> break
           od;
           x = 0;
           if
           :: n && k != NONE ->
              atomic { A(me) -> if :: fp[k] == lfp[k] && fm[k] == lfm[k] -> fp[k] = p; fm[k] = pm; n = 0
                         :: else -> n = 2 fi }
           :: else
           fi;
           atomic { k = 0; lfp[0] = 0; lfm[0] = 0; lfp[FACTS-1] = 0; lfm[FACTS-1] = 0 }
        :: else
        fi;
#endif
        if
        :: n == 1 || OUT >= MAXOUT -> n = 0; break          /* refused */
        :: n == 2 -> n = 0
        :: else ->
           if
           :: atomic { A(me) && pP == p && pI == pi && pM == pm ->
                pP = p + 1; pI = 0;
#ifndef OWNER_LATE
                pM = me;
#endif
                if :: p + 1 <= M -> own[p+1] = me :: else fi;
                chk() }
#ifdef OWNER_LATE
              atomic { A(me) -> pM = me }
#endif
              atomic { A(me) ->         /* give it to the queue: step 5 */
                n = (OUT > 0 && (pm != me || qn[me] == 0) -> p : 0);
#ifdef NO_CHAIN
                n = 0;
#endif
                if :: n || (chained[me] > ef) || MARKED -> chained[me] = p + 1; qhost[me] = qhost[me] | BIT(qn[me]) :: else fi;
                if :: qn[me] == 0 -> qp[me] = p + 1; qc[me] = n
                   :: else -> qp2[me] = p + 1; qc2[me] = n fi;
                qn[me]++; n = 0 }
              break
           :: atomic { A(me) && !(pP == p && pI == pi && pM == pm) -> skip }
           fi
        fi
     od; goto next

  :: op == 3 ->                         /* a reader */
     rd();
     atomic { A(me) -> d_step {
       n = 1;
       do
       :: n <= M ->
          assert(!ISDONE(n) || n <= gmax);
          assert(!ISLOST(n) || n > g);
          assert(n > g || ISDONE(n));              /* whatever had completed is seen */
          n++
       :: else -> break
       od; n = 0 } }
     /* property 5: the owner of an outstanding point can be told */
     if
     :: OUT > 0 -> atomic { A(me) -> assert(pI || pP > M || own[pP] == pM) }
     :: else
     fi;
     goto next

  :: op >= 4 && op <= 7 ->
     goto wait

  :: op == 8 ->                         /* open the event */
     atomic { A(me) -> life[me] = true }
     atomic { A(me) -> state[me] = ATTACHED }
     atomic { A(me) -> att = att | BIT(me) }
#ifdef PICKLE
#ifdef TAKEN_FIRST                      /* mutant: it does not wait any more, before its opener has joined */
     atomic { A(me) -> hope = (hope -> 2 : 0) }
#endif
#endif
     if :: !(ONLY & BIT(me)) -> join(0) :: else fi;
     if :: DECLARED & BIT(me) -> join(1) :: else fi;
#ifdef PICKLE
     atomic { A(me) -> hope = hope & 2; d_step { pk = 0; spec() } }
#endif
     wake(); goto next

  :: op == 9 ->                         /* close it, owing nothing */
     atomic { A(me) && qn[me] == 0 -> skip }
     closing();
     atomic { A(me) -> cd = cd & ~BIT(me); d_step { gc = gc & ~BIT(me); spec() } }
     b = 0; parting(me, false);
     atomic { A(me) -> att = att & ~BIT(me) }
     wake(); goto next

#ifdef ABANDONS
  :: op == 12 ->                        /* its process exits, or drops the event, without having signalled; it owes nothing */
     atomic { A(me) -> d_step { gone_ghost(me, true); spec() } }
#ifdef CLEAN_ABANDON                    /* mutant: as a close */
     closing();
#endif
     b = 0;
#ifdef CLEAN_ABANDON
     parting(me, false);
#else
     parting(me, true);
#endif
     ROLES(me)
     atomic { A(me) -> att = att & ~BIT(me) }
     wake(); goto next
#endif

  :: op == 10 || op == 11 ->
     if :: op == 11 -> goto next :: true fi;
     atomic { A(me) -> qoff[me] = 1;      /* queues are gone: nothing more completes */
       d_step { t = 1; do :: t <= M -> if :: own[t] == me && t > gmax -> odead[t] = 1; x = 1 :: else fi; t++ :: else -> break od; t = 0;
         if :: x -> gsd = 1; gsj = 0 :: else fi; x = 0; spec() } }
     leave(me, false);
     if
     :: q == 0 -> atomic { A(me) -> state[me] = FREE }
     :: else -> q = 0                    /* put off: left to a reaper */
     fi;
     atomic { A(me) -> alive[me] = false; life[me] = false; qn[me] = 0; qp[me] = 0; qp2[me] = 0; qc[me] = 0; qc2[me] = 0; d_step { spec() } }
     if :: me == 0 -> atomic { chg = 255; asleep = 0 } :: else fi;      /* in the sweep of the exporter; the lock goes after: half a second at most */
     goto stop

  :: op >= 13 ->
     atomic { A(me) -> gp[me] = op - 11 }
     goto next
  fi;

wait:
  n = op - 3;
  do
  ::
#ifdef SEQ_LATE                         /* as first written: waiters = 1, then s = seq */
#ifndef NO_WAITERS
     atomic { A(me) -> waiters = 1 }
#endif
     atomic { A(me) -> chg = chg & ~BIT(me) }
#else
     atomic { A(me) -> chg = chg & ~BIT(me) }
#ifdef NO_WAITERS                       /* mutant: the flag set once only */
     if :: target[me] == 0 -> atomic { A(me) -> waiters = 1; target[me] = n } :: else fi;
#else
     atomic { A(me) -> waiters = 1 }
#endif
#endif
     atomic { A(me) -> watched[me] = ((sg -> sg : cd) | 1) & ~BIT(me); target[me] = n; gw = gw & ~BIT(me); d_step { spec() } }
#if TAKEN
     unreapable();
#endif
     rd();
     if
     :: ISDONE(n) -> atomic { A(me) -> assert(n <= gmax); break }
     :: ISLOST(n) -> atomic { A(me) -> assert(n > g); break }
     :: !ISDONE(n) && !ISLOST(n) ->
        assert(n > g);
        if
        :: n > p ->
           future();
           if
           :: y -> atomic { A(me) -> assert(n > g); assert(gw & BIT(me)); break }
           :: else
           fi
        :: else ->
#ifndef NO_EARLY                        /* a dead member owes a point up to n: lost already, though its loss be put off */
           k = 0; z = 0;
           do
           :: z < N && z != me && !k ->
#ifdef FACTS_FIRST
              low(z);
              if
              :: q != 0 && q <= n -> atomic { A(me) -> k = !LIVES(z) }
              :: else
              fi; q = 0; z++
#else                                   /* first its life, then what it owes: it may have completed before it died */
              atomic { A(me) -> x = !LIVES(z) }
              if
              :: x -> low(z);
                 if
                 :: q != 0 && q <= n ->
                    k = 1
#if TAKEN
                    ; atomic { A(me) -> x = (reapb[z] != 0) }
                    if
                    :: x && q == ef + 1 ->
#ifndef NO_OWN_LOSS                     /* mutant: who cannot reap leaves it to those who can */
                       lose_for(q);
#endif
                       gt = (q > gt -> q : gt)
                    :: else
                    fi
#endif
                 :: else
                 fi; q = 0
              :: else
              fi; z++
#endif
           :: z == me && !k -> z++
           :: z >= N || k -> break
           od;
           z = 0; y = 0; x = 0;
           if
           :: k -> k = 0; atomic { A(me) -> assert(n > g);
                d_step { t = 1; tx = 0; do :: t <= n -> if :: odead[t] && t > g -> tx = 1 :: else fi; t++ :: else -> break od; assert(tx); t = 0; tx = 0 };
                break }
           :: else
           fi
#else
           skip
#endif
        fi;
        atomic { h = 0; o = 0; p = 0; pi = 0; pm = 0; v = 0; c = 0; ef = 0; g = 0; x = 0; y = 0 }
        atomic { A(me) -> if :: !(chg & BIT(me)) -> asleep = asleep | BIT(me) :: else fi }   /* futex_wait */
        if
        :: atomic { A(me) && !(asleep & BIT(me)) -> skip }
#ifdef RECHECK                          /* half a second is over */
        :: atomic { timeout && A(me) && !(rechecked & BIT(me)) -> rechecked = rechecked | BIT(me); asleep = asleep & ~BIT(me) }
#endif
        fi
     fi
  od;
  target[me] = 0;
  goto next;
stop:
  atomic { A(me) -> op = 0; pc = 0; n = 0 }
}

#if LATE
#define OPEN (!(LATE & BIT(me)) || gate)
#else
#define OPEN true
#endif
proctype Queue(byte me) {
  byte v, n, x;
  do
  :: atomic { A(me) && qn[me] && !qoff[me] && !(STUCK & BIT(me)) && OPEN && value >= qc[me] ->   /* the chain wait is over */
       n = qp[me] }
     if
     :: atomic { A(me) && !qoff[me] && (DEVICE & BIT(me)) && 
#ifdef PLAIN_STORE                      /* as first written */
                 1
#else
                 !(qhost[me] & 1)
#endif
                 -> COMPLETED; value = n; chk(); chg = 255; asleep = 0 }     /* waiters poll where devices complete */
     :: atomic { A(me) && !qoff[me] && (!(DEVICE & BIT(me)) 
#ifndef PLAIN_STORE
                 || (qhost[me] & 1)
#endif
                 ) -> v = value }
#if LATE && !defined(NO_FLOOR)
        atomic { A(me) && !qoff[me] -> x = late }
        if
        :: atomic { A(me) && x && !qoff[me] -> x = 0; if :: lhi < n -> COMPLETED; lhi = n; llo = n; chk() :: else fi }
           atomic { A(me) && !qoff[me] -> v = value }
        :: !x
        fi;
#endif
        do
        :: v >= n -> break
        :: else ->
           if
           :: atomic { A(me) && !qoff[me] && value == v -> COMPLETED; value = n; chk() } break
           :: atomic { A(me) && !qoff[me] && value != v -> v = value }
           fi
        od;
        v = 0;
        wake()
     fi;
     atomic { A(me) && !qoff[me] -> n = 0; qp[me] = qp2[me]; qc[me] = qc2[me]; qp2[me] = 0; qc2[me] = 0; qn[me]--; qhost[me] = qhost[me] >> 1 }
  od
}

#ifdef STRICT_WATCH
#define SEES(d) (watched[me] & BIT(d))
#else
#define SEES(d) true
#endif
#ifdef ONE_TRY                          /* as first written: taken by somebody: leave it to them */
#define TRY(d) !(once[me] & BIT(d))
#define LOCKABLE(d) true
#else
#define TRY(d) true
#define LOCKABLE(d) (reapb[d] == 0)
#endif
#define DEAD(d) (A(me) && d != me && !life[d] && state[d] != FREE && LOCKABLE(d) && TRY(d) && SEES(d) && (again[d] == 0 || again[d] != value + 1))

proctype Warden(byte me) {
  byte d, h, o, p, pm, v, c, ef, g, x, z, k, q, r, n;
  bit pi, b;
  short w;
  byte lfp[FACTS]; byte lfm[FACTS];
  do
  :: atomic {
       if
       :: DEAD(0) -> d = 0
       :: DEAD(1) -> d = 1
#if N > 2
       :: DEAD(2) -> d = 2
#endif
#if N > 3
       :: DEAD(3) -> d = 3
#endif
       fi;
       rechecked = 0;
#ifdef ONE_TRY
       once[me] = once[me] | BIT(d);
       if :: reapb[d] == 0 -> reapb[d] = me + 1 :: else -> d = NONE fi
#else
       reapb[d] = me + 1                /* reap 1 */
#endif
     }
     if
     :: d == NONE -> d = 0
     :: else ->
        atomic { A(me) -> x = (state[d] == FREE || life[d]) } /* reap 2 */
        if
        :: x -> x = 0; atomic { A(me) -> reapb[d] = 0; d = 0 }
        :: else ->
           atomic { A(me) -> x = ((att & BIT(d)) != 0) }      /* the bit stays while it owes */
           if
           :: x -> x = 0; leave(d, true)
           :: else
           fi;
           if                                                 /* reap 5 */
           :: q == 0 ->
              RING
              atomic { A(me) -> state[d] = FREE }
              atomic { A(me) -> reapb[d] = 0; again[d] = 0; k = 0; d = 0 }
           :: else -> atomic { A(me) -> reapb[d] = 0; q = 0; again[d] = k; k = 0; d = 0 }
           fi
        fi
     fi
  od
}

#ifdef PICKLE
proctype Clock() {
  atomic { due = 1;
    d_step {
      if :: pk && !(hope & 2) && gs == 0 && (!gsd || gsj) -> gcd = 1; gcj = 0; if :: gcl -> amb = 1 :: else fi :: else fi;
      pk = 0; rechecked = 0; spec() } }
}
#endif

/* somebody new takes the index of a dead member, once; it has nothing to do with this slot */
proctype Newcomer(byte d) {
  atomic { !alive[d] && !life[d] && state[d] == FREE && reapb[d] == 0 -> reapb[d] = NONE }
  atomic { life[d] = true }
  atomic { state[d] = ATTACHED }
  atomic { reapb[d] = 0 }
}

#define SIGHT (value + (pP << 3) + (lhi << 6) + (sg << 9) + (cd << 13) + (LIFE << 17) + ((ro & 511) << 21))
#if N == 2
#define LIFE (life[0] + 2 * life[1])
#elif N == 3
#define LIFE (life[0] + 2 * life[1] + 4 * life[2])
#else
#define LIFE (life[0] + 2 * life[1] + 4 * life[2] + 8 * life[3])
#endif

/* the warden guards a device that waits for a future point.  It looks again after every change (the bell) */
proctype Guard(byte me) {
#ifdef PICKLE
  byte u8; bit aw;
#endif
  byte h, o, p, pm, v, c, ef, g, x, y, z, k, q, n;
  bit pi;
  short w;
  int seen;
#if TAKEN
  byte rt;
#endif
  atomic { A(me) && gp[me] -> n = gp[me] }
  do
  :: atomic { A(me) -> seen = SIGHT; bell = bell & ~BIT(me); gw = gw & ~BIT(me); d_step { spec() } }
#if TAKEN
     unreapable();
#endif
     rd();
     if
     :: ISDONE(n) || ISLOST(n) -> break
     :: else
     fi;
     if
     :: n > p ->
        future();
        if
        :: y -> y = 0; assert(gw & BIT(me));
           rd();                        /* abandon 1 */
           if
           :: ISDONE(n) || ISLOST(n) -> break
           :: else
           fi;
           x = 0;
#ifdef ABANDON_ALL                      /* as first written */
           if :: n <= p -> lose(); break :: else -> x = 1 fi;
#else
           if :: OUT == 0 && n > p -> future(); x = y; y = 0 :: else fi;
#endif
           if
           :: x -> x = 0;
#ifndef ABANDON_INSTANT
              if :: pi && p > v -> raise(p) :: else fi;
#endif
              if
              :: atomic { A(me) && pP == p && pI == pi && pM == pm ->           /* abandon 2 */
                   pP = n; pI = 0; pM = me;
                   d_step { t = p + 1; do :: t <= n -> own[t] = me; odead[t] = 1; t++ :: else -> break od; t = 0 };
                   chk() }
                 lose();                                      /* abandon 3 */
                 break
              :: atomic { A(me) && !(pP == p && pI == pi && pM == pm) -> skip }
              fi
           :: else                      /* put off */
           fi
        :: else
        fi
     :: else                            /* submitted since: a reaper's business */
     fi;
     atomic { h = 0; o = 0; p = 0; pi = 0; pm = 0; v = 0; c = 0; ef = 0; g = 0; x = 0; y = 0 }
     atomic { A(me) && (seen != SIGHT || (bell & BIT(me))) -> seen = 0 }
  od
}

#if LATE
/* What the device waits for elsewhere is lost: its process loses its first signal here, and then lets the device go.  The
 * store comes all the same, and is mended */
proctype Late(byte me) {
  byte h, o, p, pm, v, c, ef, g, x, q;
  bit pi;
  atomic { A(me) && qn[me] -> q = qp[me]; odead[q] = 1 }
#ifndef MARK_LATE
  atomic { A(me) -> late = 1 }
#endif
  do
  :: rd();
     if
     :: OUT == 0 || ef >= q -> break
     :: OUT && ef < q && ef + 1 != q ->                       /* put off */
        atomic { A(me) && (value != v || lhi != h) -> skip }
     :: OUT && ef + 1 == q ->
        if
        :: atomic { A(me) && lhi == h && llo == o ->          /* lose 2 */
             llo = (c > h -> c : o); lhi = p; chk(); }
           raise(p); wake(); break
        :: atomic { A(me) && !(lhi == h && llo == o) -> skip }
        fi
     fi
  od;
#ifdef MARK_LATE                        /* mutant: somebody submits in between */
  atomic { A(me) -> late = 1 }
#endif
  atomic { A(me) -> gate = 1; h = 0; o = 0; p = 0; pi = 0; pm = 0; v = 0; c = 0; ef = 0; g = 0; q = 0 }
#ifndef NO_MEND
  do
  :: atomic { A(me) && value < (lhi > (pI -> pP : 0) -> lhi : (pI -> pP : 0)) -> skip }
     rd(); raise(ef);
     atomic { h = 0; o = 0; p = 0; pi = 0; pm = 0; v = 0; c = 0; ef = 0; g = 0 }
  od
#endif
}
#endif

#if BEHIND
/* Point 1 is owed by member 1.  The state is read in one step here: what comes of its pieces is the others' matter */
#define LOOK atomic { A(me) -> h = lhi; o = llo; c = value }
inline raiseto(n) { atomic { A(me) -> if :: value < n -> value = n; chk() :: else fi } }
#ifdef RELEASE_EARLY                    /* mutant: whoever loses lets devices go at once */
#define LETGO1 raiseto(1)
#else
#define LETGO1 if :: atomic { A(me) && guards == 0 -> skip } raiseto(1) :: atomic { A(me) && guards != 0 -> skip } fi
#endif
inline out() {
  atomic { A(me) -> guards--; gin[me] = 0 }
  LOOK;                                 /* finish */
  if
  :: c < h -> LETGO1
  :: else
  fi;
  atomic { h = 0; o = 0; c = 0 }
}

/* A lane: wait for point 1, then signal another slot */
proctype Lane(byte me) {
  byte h, o, c;
#ifndef GUARD_LATE
  atomic { A(me) -> guards++; gin[me] = 1 }
#endif
  LOOK;
#ifdef GUARD_LATE                       /* mutant: counted in after the look at the state */
  atomic { A(me) -> guards++; gin[me] = 1 }
#endif
  if
  :: ISDONE(1) || ISLOST(1) -> out()    /* nothing to wait for */
  :: else -> atomic { h = 0; o = 0; c = 0 }
     atomic { A(me) -> gnode[me] = 1 }
     atomic { A(me) -> dwait[me] = 1 }
     atomic { A(me) -> bsub[me] = 1; bchain[me] = !served[me] }
  fi
}

proctype Stream(byte me) {
  atomic { A(me) && dwait[me] && value >= 1 -> dpast[me] = 1 }
  atomic { A(me) && bsub[me] -> assert(!bchain[me] || blost[me] || lhi < 1 || llo >= 1)     /* the store */
#ifdef CASCADE
    ; bval = 1
#endif
  }
}

/* Member 1's death is noticed; two that reap at once do no harm */
proctype Reaper(byte me) {
  byte h, o, c;
  atomic { A(me) && !alive[1] -> skip }
  LOOK;
  if
  :: c < 1 && h < 1 ->
     if
     :: atomic { A(me) && lhi == h && llo == o -> llo = (c > h -> c : o); lhi = 1; chk() }
     :: atomic { A(me) && !(lhi == h && llo == o) -> skip }
     fi
  :: else
  fi;
  LOOK;
  if
  :: c < h -> LETGO1
  :: else
  fi
}

/* The grace: a process that lives has lost its own by then */
#define YET(i) (alive[i] && gin[i] && !served[i])
#ifdef CASCADE
#define YET2 (alive[2] && bgin && !bserved)
#define LETGO2 if :: atomic { A(me) && bguards == 0 -> bval = 1 } :: atomic { A(me) && bguards != 0 -> skip } fi
proctype Lane2(byte me) {
  atomic { A(me) && bsub[0] -> bguards++; bgin = 1 }
  if
  :: atomic { A(me) && (bval >= 1 || bl) -> skip }
     atomic { A(me) -> bguards--; bgin = 0 }
     if :: atomic { A(me) && bl -> skip } LETGO2 :: atomic { A(me) && !bl -> skip } fi
  :: atomic { A(me) && bval < 1 && !bl -> skip }
     atomic { A(me) -> bgnode = 1 }
     atomic { A(me) -> bdwait = 1 }
     atomic { A(me) -> bbsub = 1; bbchain = !bserved }
  fi
}

proctype Stream2(byte me) {
  atomic { A(me) && bdwait && bval >= 1 -> bdpast = 1 }
  atomic { A(me) && bbsub -> assert(!bbchain || bblost || !bl) }
}

proctype Server2(byte me) {
  atomic { A(me) && bgnode && (bval >= 1 || bl) -> skip }
  if
  :: atomic { A(me) && bl -> skip }
     atomic { A(me) -> bblost = bbsub; bserved = 1 }
     if
     :: atomic { A(me) && bval >= 1 -> skip }
     :: atomic { A(me) && (bguards == 1 || !YET2) -> skip } atomic { A(me) -> bval = 1 }
     fi
  :: atomic { A(me) && !bl -> skip }
  fi;
  atomic { A(me) -> bguards--; bgin = 0 }
  if :: atomic { A(me) && bl -> skip } LETGO2 :: atomic { A(me) && !bl -> skip } fi
}

proctype Reaper2(byte me) {             /* of member 0, which owes the point */
  atomic { A(me) && !alive[0] -> skip }
  if
  :: atomic { A(me) && bsub[0] && bval < 1 && !bl -> bl = 1 }
  :: atomic { A(me) && !(bsub[0] && bval < 1 && !bl) -> skip }
  fi;
  if :: atomic { A(me) && bl -> skip } LETGO2 :: atomic { A(me) && !bl -> skip } fi
}
#else
#define YET2 false
#endif
proctype Server(byte me) {
  byte h, o, c;
  atomic { A(me) && gnode[me] && (value >= 1 || lhi >= 1) -> h = lhi; o = llo; c = value }
  if
  :: ISLOST(1) ->
#ifndef NO_CHAIN_LOSS
#ifdef CASCADE
     if
     :: atomic { A(me) && bsub[me] -> blost[me] = 1; bl = 1; served[me] = 1 }
        LETGO2
     :: atomic { A(me) && !bsub[me] -> served[me] = 1 }
     fi;
#else
     atomic { A(me) -> blost[me] = bsub[me]; served[me] = 1 }
#endif
#endif
     if
     :: atomic { A(me) && value >= 1 -> skip }
#if defined(CASCADE) && !defined(FORWARD)  /* the devices that wait for what is lost here first */
     :: atomic { A(me) && guards == 1 && (!blost[me] || bval >= 1) -> skip } raiseto(1)
#else
     :: atomic { A(me) && guards == 1 -> skip } raiseto(1)
#endif
#ifndef NO_GRACE
     :: atomic { A(me) && !YET(0) && !YET(1) && !YET(2) && !YET2 -> skip } raiseto(1)
#endif
     fi
  :: else
  fi;
  out()
}
#endif

inline kill(i) {
  d_step {
    alive[i] = false; life[i] = false; gp[i] = 0;
    asleep = asleep & ~BIT(i);
    t = 0;
    do :: t < N -> if :: reapb[t] == i + 1 -> reapb[t] = 0 :: else fi; t++ :: else -> break od;
    t = 1;
    do :: t <= M -> if :: own[t] == i && t > gmax -> odead[t] = 1 :: else fi; t++ :: else -> break od;
    gone_ghost(i, true); spec();
    qn[i] = 0; qp[i] = 0; qc[i] = 0; qp2[i] = 0; qc2[i] = 0; qhost[i] = 0; chained[i] = 0; target[i] = 0; watched[i] = 0; once[i] = 0;
    budget--
  }
}

#if TAKEN
/* whoever holds the reap byte of a member, and may let it go */
proctype Holder(byte d) {
  if
  :: atomic { reapb[d] = 0 }
  :: true
  fi
}
#define HELD(i) (reapb[i] == NONE)
#define OR_HELD(i) || HELD(i)
#else
#define OR_HELD(i)
#endif

proctype Killer() {
  do
  :: atomic { budget && alive[0] && (MORTAL & 1) -> kill(0) }
  :: atomic { budget && alive[1] && (MORTAL & 2) -> kill(1) }
#if N > 2
  :: atomic { budget && alive[2] && (MORTAL & 4) -> kill(2) }
#endif
#if N > 3
  :: atomic { budget && alive[3] && (MORTAL & 8) -> kill(3) }
#endif
  :: break
  od;
  budget = 0
}

init {
  byte i, k, e;
  atomic {
    own[0] = NONE; i = 1; do :: i <= M -> own[i] = NONE; i++ :: else -> break od;
    i = 0;
    do
    :: i < N ->
       alive[i] = true;
       if
       :: START & BIT(i) -> life[i] = true; state[i] = ATTACHED; att = att | BIT(i);
          if :: !(ONLY & BIT(i)) -> cd = cd | BIT(i) :: else fi;
          if :: DECLARED & BIT(i) -> sg = sg | BIT(i); ro = ro | 4; gever = 1 :: else fi
       :: else
       fi;
#ifdef MEMBERS                          /* members of the commons that do not have the event open */
       if :: MEMBERS & BIT(i) -> life[i] = true; state[i] = ATTACHED :: else fi;
#endif
       i++
    :: else -> break
    od;
#if BEHIND
    pP = 1; pM = 1; own[1] = 1; qn[1] = 1; qp[1] = 1;        /* member 1 owes point 1 */
#endif
    i = 0;
    do
    :: i < N ->
#if !BEHIND
       run Main(i);
#else
       if :: i != 1 -> run Reaper(i) :: else fi;
#endif
       if :: QUEUES & BIT(i) -> run Queue(i) :: else fi;
       if :: WARDENS & BIT(i) -> run Warden(i) :: else fi;
#ifdef GUARDS
       if :: GUARDS & BIT(i) -> run Guard(i) :: else fi;
#endif
#if LATE
       if :: LATE & BIT(i) -> run Late(i) :: else fi;
#endif
#if BEHIND
       if :: BEHIND & BIT(i) -> run Lane(i); run Stream(i); run Server(i) :: else fi;
#endif
#ifdef REUSE
       if :: REUSE & BIT(i) -> run Newcomer(i) :: else fi;
#endif
#if TAKEN
       if :: TAKEN & BIT(i) -> reapb[i] = NONE; run Holder(i) :: else fi;
#endif
       i++
    :: else -> break
    od;
    i = 0; gs = sg; gc = cd;
#ifdef PICKLE
    run Clock();
#endif
#ifdef CASCADE
    run Lane2(2); run Stream2(2); run Server2(2); run Reaper2(2);
#endif
    run Killer()
  }
  timeout && !(asleep & ~rechecked & RECHECKS) ->   /* nothing moves any more: what is left must be right */
  atomic {
    e = (value > lhi -> value : lhi);
    if :: pI && pP > e -> e = pP :: else fi;
    k = 0; i = 0;
    do
    :: i < N ->
       if :: alive[i] && (WARDENS & BIT(i)) -> k = 1 :: else fi; i++
    :: else -> break
    od;
#if BEHIND
    i = 0;
    do                                  /* 1: no device hangs on what is done or lost */
    :: i < N -> assert(!alive[i] || !dwait[i] || dpast[i] || e == 0); i++
    :: else -> break
    od
#ifdef CASCADE
    ; assert(!alive[2] || !bdwait || bdpast || !(bl || bval))
#endif
#endif
    if
    :: k ->                             /* somebody is left to see deaths */
#ifdef STRICT_WATCH
       assert(asleep == 0 || value >= e);
#else
#if TAKEN                               /* what a dead member has not finished is its reaper's, and the guards' */
       assert(value >= e || (pI && !alive[pM] && HELD(pM)));
#else
       assert(value >= e);              /* 1: device waits on what is done or lost are released */
#endif
#endif
       i = 0;
       do
       :: i < N ->
          if
          :: !alive[i] ->               /* 6 */
#ifdef STRICT_WATCH                     /* nobody reaps a member on which nobody relies */
             assert(asleep == 0 || !((sg -> sg : cd) & BIT(i)));
#else
             assert(STUCK || again[i] == value + 1 || state[i] == FREE || life[i] OR_HELD(i));
             assert(STUCK || !(att & BIT(i)) OR_HELD(i));
#endif
             assert(reapb[i] == 0 OR_HELD(i));
          :: else ->
             assert(qn[i] == 0 || (STUCK & BIT(i)) || STUCK);     /* 1: no chain wait hangs */
             if                                                   /* 1: no device hangs on a future point that is lost */
             :: gp[i] > value -> assert(gp[i] > pP); assert(!MUST(i))
             :: else
             fi;
             if
             :: (asleep & BIT(i)) ->
                k = target[i];
                if
                :: k <= pP ->
                   assert(k > e);                                  /* 1: done or lost, and asleep */
                   e++;
                   do
                   :: e <= k -> assert(e > M || !odead[e]); e++     /* 1: a dead owner's */
                   :: else -> break
                   od
                :: else -> assert(!MUST(i))                        /* lost by the rule, and asleep */
                fi;
                e = (value > lhi -> value : lhi)
             :: else
             fi
          fi; i++
       :: else -> break
       od;
       i = 1;
       do                               /* 6: nothing is outstanding that the dead owe */
#if TAKEN
       :: i <= M -> assert(!(st[i] == 1 && odead[i]) || (own[i] != NONE && HELD(own[i]) && i > gt)); i++
#else
       :: i <= M -> assert(!(st[i] == 1 && odead[i]) || STUCK); i++
#endif
       :: else -> break
       od
    :: else
    fi
  }
}
