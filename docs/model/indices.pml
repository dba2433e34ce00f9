/* How processes become members of a group, and take over the index of a dead one: docs/channels-protocol.md.  See README.md.
 *
 * An index belongs to the process that holds its life byte. Each member attaches to a place with a lock in it, takes that
 * lock, releases it, detaches, and leaves the group. A process stops for ever between any two steps when it is killed.
 */
#ifndef N
#define N 3
#endif
#ifndef INDICES
#define INDICES 2
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#define BIT(i) (1 << (i))
#define DIES(me) deaths < DEATHS -> deaths++; alive[me] = false; goto dead
#define A(me, what) atomic { if :: DIES(me) :: true -> what fi }
#define WHEN(me, condition, what) atomic { if :: DIES(me) :: (condition) -> what fi }
#define LIVES(i) (life[i] != 0 && alive[life[i] - 1])
#define OWNER(word) ((word) % 16)
#ifdef NO_TURN
#define SAME(word, was) (OWNER(word) == OWNER(was))
#else
#define SAME(word, was) ((word) == (was))
#endif
#define NEXT(word, who) (((word) / 16 + 1) * 16 + (who))

byte life[INDICES];         /* who holds the life byte: 1 + process; the kernel drops it at a death */
byte bits;                  /* who is attached to the place, by index */
int word;                   /* turn * 16 + 1 + index of the owner */
bool alive[N], over[N], owns[N]; /* owns: a ghost */
byte deaths;

/* Whoever has just taken the index clears what its last process has left there. */
inline sweep(me)
{
    A(me, was = word);
    if
    :: OWNER(was) == i + 1 ->
        A(me, if
              :: SAME(word, was) -> word = NEXT(word, 0)
              :: else
              fi)
    :: else
    fi;
    A(me, bits = bits & ~BIT(i))
}

proctype Process(byte me; byte rounds)
{
    byte i, j;
    int was;
again:
    atomic { i = 0; j = 0; was = 0 };
claim:
#ifdef NO_LIFE_LOCK
    WHEN(me, !LIVES(0) || !LIVES(INDICES - 1), i = (!LIVES(0) -> 0 : INDICES - 1));
    A(me, life[i] = me + 1);
#else
    WHEN(me, !LIVES(0) || !LIVES(INDICES - 1), i = (!LIVES(0) -> 0 : INDICES - 1); life[i] = me + 1);
#endif
#if !defined(NO_SWEEP) && !defined(SWEEP_LATE)
    sweep(me);
#endif
    A(me, bits = bits | BIT(i));
#ifdef SWEEP_LATE
    sweep(me);
#endif

#ifdef ANYBODY_CLEARS
    j = 0;
    do
    :: j < INDICES ->
        if
        :: j != i ->
            A(me, was = ((bits & BIT(j)) && !LIVES(j)));
            if
            :: was -> A(me, bits = bits & ~BIT(j))
            :: else
            fi
        :: else
        fi;
        j++
    :: else -> break
    od;
    j = 0;
#endif

acquire:
    WHEN(me, OWNER(word) == 0 || !LIVES(OWNER(word) - 1), was = word);
    if
    :: OWNER(was) == 0 ->
        A(me, if
              :: SAME(word, was) ->
                  word = NEXT(word, i + 1);
                  owns[me] = true;
                  j = 0;
                  do
                  :: j < N -> assert(j == me || !alive[j] || !owns[j]); j++
                  :: else -> break
                  od;
                  j = 0
              :: else -> goto acquire
              fi)
    :: else -> /* the owner is gone */
        A(me, if
              :: SAME(word, was) -> word = NEXT(word, 0)
              :: else
              fi);
        goto acquire
    fi;
    /* every living process that is attached has its bit */
    A(me, assert(bits & BIT(i)); assert(OWNER(word) == i + 1));
    A(me, owns[me] = false; word = NEXT(word, 0));
    A(me, assert(bits & BIT(i)); bits = bits & ~BIT(i));
    A(me, life[i] = 0);
    rounds--;
    if
    :: rounds > 0 -> goto again
    :: else
    fi;
dead:
    atomic { i = 0; j = 0; was = 0; rounds = 0; over[me] = true }
}

init
{
    byte m;
    atomic {
        m = 0;
        do
        :: m < N -> alive[m] = true; run Process(m, ROUNDS); m++
        :: else -> break
        od;
        m = 0
    }
#if N == 2
    (over[0] && over[1]);
#elif N == 3
    (over[0] && over[1] && over[2]);
#endif
    assert(deaths > 0 || (bits == 0 && OWNER(word) == 0))
}
