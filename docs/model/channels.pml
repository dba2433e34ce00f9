/* The channel protocol of docs/channels-protocol.md: slots under a lock whose owner may die.  See README.md.
 *
 * Every A(me, ...) is one store to shared memory, or one look at words that the lock keeps as they are, by a live
 * process. A process stops for ever between any two of them when it is killed. Members 0 ... WRITERS - 1 write, the
 * others read, in the mode that MODES says: two bits each, 1 "all", 2 "newest", 3 "one".
 */
#ifndef N
#define N 3
#endif
#ifndef WRITERS
#define WRITERS 1
#endif
#ifndef MODES
#define MODES 20
#endif
#ifndef MORTAL
#define MORTAL 255
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef FRAMES
#define FRAMES 2            /* that each writer sends */
#endif
#ifndef S
#define S 2                 /* slots */
#endif
#ifndef HELD
#define HELD 1              /* that readers may hold at a time */
#endif
#ifndef OVERWRITE
#define OVERWRITE 0
#endif
#define MOST (FRAMES * WRITERS + 2)
#define MODE(m) ((MODES >> (2 * (m))) & 3)
#define BIT(m) (1 << (m))
/* (the reaper's stores for one slot are separate; those of `repair` are not, since doing them again changes nothing) */
#define A(me, what) atomic { if :: !alive[me] -> goto dead :: else -> what fi }
#define WHEN(me, condition, what) atomic { (!alive[me] || (condition)) -> if :: !alive[me] -> goto dead :: else -> what fi }

#define FREE 0
#define LOANED 1
#define FULL 2
#define NONE 0
#define QUEUED 1
#define TAKEN 2
#define DONE 3

byte state[S], seqs[S], by[S], holders[S], job[S], taker[S];
byte content[S];            /* ghost: what the elements are; 0: half written */
byte value[MOST + 1];       /* ghost: what was sent as that frame */
bool acked[MOST + 1];       /* ghost */
byte nextseq = 1, owner, gone, deaths;
bool changed[N];            /* since that member looked */
bool group, alive[N], role[N], finished[N];
byte cursor[N];
bool seen_one[MOST + 1];

inline lock(me)
{
    WHEN(me, owner == 0 || !alive[owner - 1], stolen = (owner != 0); owner = me + 1);
    if
    :: stolen ->
#ifndef NO_REPAIR
        A(me, i = 0;
              do
              :: i < S -> if
                          :: state[i] == FULL && seqs[i] >= nextseq -> nextseq = seqs[i] + 1
                          :: else
                          fi;
                          i++
              :: else -> break
              od;
              i = 0);
#endif
        skip
    :: else
    fi
}

inline change() { changed[0] = true; changed[1] = true; changed[N - 1] = true }

inline unlock(me, tell)
{
    A(me, i = 0; d = 0; n = 0; stolen = false);
    A(me, owner = 0);
    A(me, if
          :: tell -> change()
          :: else
          fi)
}

/* Take out those whose death was noticed. With the lock. */
inline reap(me)
{
    for (d : 0 .. N - 1) {
        if
        :: role[d] && !alive[d] ->
            for (i : 0 .. S - 1) {
                A(me, if
                      :: state[i] == LOANED && by[i] == d + 1 -> state[i] = FREE
                      :: else
                      fi);
#ifndef NO_REDELIVER
                A(me, if
                      :: state[i] == FULL && job[i] == TAKEN && taker[i] == d + 1 -> job[i] = QUEUED
                      :: else
                      fi);
#endif
                A(me, holders[i] = holders[i] & ~BIT(d))
            }
            A(me, if
                  :: d < WRITERS && !(WRITERS > 1 && role[1 - d]) -> gone = (finished[d] -> 1 : 2)
                  :: else
                  fi);
            A(me, role[d] = false);
            A(me, change())
        :: else
        fi
    }
}

/* A member reaps before it sleeps, so one that does not sleep finds the dead as they were. */
inline may_reap(me)
{
    if
    :: reap(me)
    :: skip
    fi
}

/* Until something changes, or somebody dies whom the warden tells of. */
#define UNREAPED ((role[0] && !alive[0]) || (role[1] && !alive[1]) || (N > 2 && role[N - 1] && !alive[N - 1]))
inline sleep(me) { WHEN(me, changed[me] || UNREAPED || (owner != 0 && !alive[owner - 1]), skip) }

/* A slot to write; S: there is none. */
inline choose_slot(me)
{
    d_step {
        k = S; j = S; low = 255; n = 0;
        i = WRITERS;
        do
        :: i < N -> if
                    :: role[i] && MODE(i) == 1 && cursor[i] < low -> low = cursor[i]
                    :: else
                    fi;
                    i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < S ->
            if
            :: state[i] == LOANED -> n++
            :: state[i] == FREE -> k = i
            :: else -> if
#ifndef MUTANT_HELD
                :: holders[i] -> skip
#endif
                :: else -> if
                    :: j == S || seqs[i] < seqs[j] -> j = i
                    :: else
                    fi
                fi
            fi;
            i++
        :: else -> break
        od;
        if
#ifdef MUTANT_TAKEN
        :: k == S && j < S && ((seqs[j] < low && job[j] != QUEUED) || OVERWRITE) -> k = j
#else
        :: k == S && j < S && ((seqs[j] < low && job[j] != QUEUED && job[j] != TAKEN) || OVERWRITE) -> k = j
#endif
        :: else
        fi;
        if
        :: n >= WRITERS -> k = S
        :: else
        fi;
        i = 0; j = 0; n = 0; low = 0
    }
}

proctype Writer(byte me)
{
    byte i, j, k, d, n, low, sent, seq;
    bool stolen;
    do
    :: sent < FRAMES ->
        A(me, changed[me] = false);
        lock(me);
        may_reap(me);
        A(me, choose_slot(me));
        if
        :: k == S ->
            unlock(me, false);
            sleep(me)
        :: else ->
            A(me, by[k] = me + 1);
            A(me, d = 0;
                  do
                  :: d < N -> assert(!(alive[d] && (holders[k] & BIT(d)))); d++ /* a held frame is never overwritten */
                  :: else -> break
                  od;
                  d = 0;
                  state[k] = LOANED);
            unlock(me, false);
            A(me, content[k] = 0);
            A(me, content[k] = 1 + me * FRAMES + sent);
            lock(me);
            A(me, job[k] = (group -> QUEUED : NONE));
#ifdef NEXT_FIRST
            A(me, seq = nextseq; nextseq = seq + 1);
            A(me, seqs[k] = seq; value[seq] = content[k]; state[k] = FULL);
#else
            A(me, seq = nextseq; seqs[k] = seq; assert(value[seq] == 0); value[seq] = content[k]; state[k] = FULL);
            A(me, nextseq = seq + 1);
#endif
            unlock(me, true);
            sent++
        fi
    :: else -> break
    od;
    lock(me);
    A(me, finished[me] = true);
    unlock(me, true);
dead:
    skip
}

/* A frame to read; S: there is none, and `over` says whether to wait for one. */
inline choose_frame(me)
{
    d_step {
        k = S; n = 0; over = true;
        i = 0;
        do
        :: i < S ->
            if
            :: state[i] == FULL ->
                n = n + (holders[i] -> 1 : 0);
                if
                :: MODE(me) == 3 && (job[i] == TAKEN || job[i] == QUEUED) -> over = false
                :: else
                fi;
                if
                :: MODE(me) == 3 && job[i] == QUEUED && (k == S || seqs[i] < seqs[k]) -> k = i
                :: MODE(me) == 1 && seqs[i] >= cursor[me] && (k == S || seqs[i] < seqs[k]) -> k = i
                :: MODE(me) == 2 && seqs[i] >= cursor[me] && (k == S || seqs[i] > seqs[k]) -> k = i
                :: else
                fi
            :: else
            fi;
            i++
        :: else -> break
        od;
        if
        :: k < S && holders[k] == 0 && n >= HELD -> k = S; over = false
        :: else
        fi;
        i = 0;
        do
        :: i < WRITERS -> if
                          :: role[i] && !finished[i] -> over = false
                          :: else
                          fi;
                          i++
        :: else -> break
        od;
        i = 0; n = 0
    }
}

proctype Reader(byte me)
{
    byte i, k, d, n, seq;
    bool stolen, over;
    do
    :: A(me, changed[me] = false);
        lock(me);
        may_reap(me);
        A(me, choose_frame(me));
        if
        :: k == S && over ->
#if OVERWRITE == 0
            A(me, d = 1;
                  do
                  :: d < nextseq -> assert(MODE(me) != 3 || acked[d] || value[d] == 0); d++
                  :: else -> break
                  od);
            A(me, assert(MODE(me) != 1 || cursor[me] == nextseq));
#endif
            unlock(me, false);
            break
        :: k == S && !over ->
            unlock(me, false);
            sleep(me)
        :: else ->
            A(me, seq = seqs[k];
                  if
                  :: MODE(me) == 3 ->
                      assert(!(job[k] == TAKEN && taker[k] && alive[taker[k] - 1])); /* never two living readers */
                      assert(!acked[seq]);
                      job[k] = TAKEN; taker[k] = me + 1
                  :: else
                  fi);
            A(me, holders[k] = holders[k] | BIT(me));
#if OVERWRITE == 0
            A(me, assert(MODE(me) != 1 || seq == cursor[me])); /* "all" sees each */
#endif
            A(me, assert(MODE(me) == 3 || seq >= cursor[me]); cursor[me] = seq + 1);
            unlock(me, false);
            A(me, assert(content[k] == value[seq])); /* the frame that was sent, whole */
            A(me, assert(content[k] == value[seq]));
            lock(me);
            A(me, if
                  :: MODE(me) == 3 -> job[k] = DONE; acked[seq] = true
                  :: else
                  fi);
            A(me, holders[k] = holders[k] & ~BIT(me));
            unlock(me, true)
        fi
    od;
dead:
    skip
}

proctype Killer()
{
    byte m;
    do
    :: deaths < DEATHS ->
        atomic {
            select (m : 0 .. N - 1);
            if
            :: (MORTAL & BIT(m)) && alive[m] -> alive[m] = false; deaths++
            :: else -> break
            fi
        }
    :: break
    od
}

/* Whoever is alive has come to its end, and not to wait for what never comes: else this is never reached. */
init
{
    byte m;
    atomic {
        m = 0;
        do
        :: m < N ->
            alive[m] = true;
            role[m] = true;
            cursor[m] = 1;
            group = group || (m >= WRITERS && MODE(m) == 3);
            if
            :: m < WRITERS -> run Writer(m)
            :: else -> run Reader(m)
            fi;
            m++
        :: else -> break
        od;
        run Killer()
    }
}
