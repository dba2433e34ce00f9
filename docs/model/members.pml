/* How processes find each other by a name, and how the last one removes it: docs/channels-protocol.md.  See README.md.
 *
 * A name stands for a file, which says in which place of a group's memory the object is, and of which generation. Each
 * A(me, ...) is one store or look at shared memory, or one system call, of a live process. A process stops for ever
 * between any two of them when it is killed, and the kernel then drops its lock and its life byte. Process m is member m.
 * With HOME, the places belong to the process that made them, which uses an ended one again.
 */
#ifndef N
#define N 3
#endif
#ifndef ROUNDS
#define ROUNDS 1            /* how often each process opens and closes the name */
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef MORTAL
#define MORTAL (BIT(N) - 1)
#endif
#define LAST N              /* a process that acts when all others have left or died */
#define FILES (N * ROUNDS + 2)
#define PLACES (N + 1 + FILES)
#define BIT(m) (1 << (m))
#define DIES(me) deaths < DEATHS && (MORTAL & BIT(me)) -> deaths++; alive[me] = false; goto dead
#define A(me, what) atomic { if :: DIES(me) :: true -> what fi }
#define WHEN(me, condition, what) atomic { if :: DIES(me) :: (condition) -> what fi }
#define HELD(f) (lock[f] != 0 && alive[lock[f] - 1])

byte name;                  /* the file that the name stands for; 0: none */
byte files;                 /* how many there have been */
byte place[FILES], since[FILES], records[FILES], lock[FILES]; /* of a file; records, bits: masks of members */
byte gen[PLACES], bits[PLACES];
bool alive[N + 1], over[N + 1];
byte inside[N + 1];         /* ghost: the file whose object that process uses */
byte deaths;

/* Nobody alive uses another object, and this one has not ended. */
inline enter(me, f)
{
    inside[me] = f;
    m = 0;
    do
    :: m <= N -> assert(!alive[m] || inside[m] == 0 || inside[m] == f); m++
    :: else -> break
    od;
    assert(gen[place[f]] == since[f]);
    m = 0
}

inline end_place(me, f)
{
    m = 0;
    do
    :: m <= N -> assert(m == me || !alive[m] || inside[m] != f); m++
    :: else -> break
    od;
    m = 0;
    gen[place[f]]++
}

/* `others`: whether another living member has its bit there. The mask is read at once, the life bytes one by one. */
inline look(me, p)
{
    A(me, mask = bits[p] & ~BIT(me); others = false);
    m = 0;
    do
    :: mask != 0 && !others && m <= N ->
        if
        :: mask & BIT(m) -> A(me, others = alive[m])
        :: else
        fi;
        m++
    :: else -> break
    od;
    atomic { m = 0; mask = 0 }
}

/* `opened`: whether another living process has a record in the file, from which its memory opens. */
inline scan(me, f)
{
    m = 0;
    do
    :: m <= N && !opened ->
        if
        :: m != me -> A(me, opened = (records[f] & BIT(m)) && alive[m])
        :: else
        fi;
        m++
    :: else -> break
    od;
    m = 0
}

proctype Process(byte me; byte rounds)
{
    byte f, p, g, m, mask;
    bool others, opened, fits;
again:
    atomic { f = 0; p = 0; g = 0; opened = false; others = false; fits = false };
    A(me, f = name);
    if
    :: f != 0 -> goto join
    :: else
    fi;

    /* make: nobody knows the place before the link */
#ifdef HOME
#ifndef REUSE_BLINDLY
    p = me;
    look(me, p);
    p = 0;
#endif
    A(me, if
          :: gen[me] % 2 == 0 && !others -> gen[me]++; bits[me] = BIT(me); fits = true /* it begins */
          :: else
          fi);
    others = false;
#endif
    A(me, if
          :: name == 0 ->
              files++;
              f = files;
              if
              :: fits -> p = me
              :: else -> p = N + f; gen[p] = 1; bits[p] = BIT(me)
              fi;
              g = gen[p];
              place[f] = p; since[f] = g; records[f] = BIT(me);
              name = f;
              enter(me, f)
          :: else
          fi);
    if
    :: f == 0 && fits -> /* another was faster */
        A(me, gen[me]++);
        A(me, bits[me] = bits[me] & ~BIT(me));
        goto again
    :: f == 0 && !fits -> goto again
    :: else -> fits = false; goto hold
    fi;

join:
    atomic { p = place[f]; g = since[f] };
    scan(me, f);
    if
    :: !opened -> goto remove
    :: else
    fi;
#ifndef RECORD_LATE
    A(me, records[f] = records[f] | BIT(me));
#endif
    A(me, bits[p] = bits[p] | BIT(me));
#ifndef NO_QUERY
    WHEN(me, !HELD(f), skip);
    A(me, fits = (name == f));
#else
    fits = true;
#endif
#ifndef NO_GENERATION
    A(me, fits = fits && gen[p] == g);
#endif
    if
    :: fits -> look(me, p)
    :: else
    fi;
    if
    :: fits && others ->
        A(me, enter(me, f));
#ifdef RECORD_LATE
        A(me, records[f] = records[f] | BIT(me));
#endif
        goto hold
    :: else
    fi;
    fits = false;

remove:
#ifndef NO_LOCK
    WHEN(me, !HELD(f), lock[f] = me + 1);
#endif
#ifndef NO_INODE
    A(me, fits = (name == f));
#else
    fits = true;
#endif
#ifndef NO_RESCAN
    if
    :: fits && !opened ->
        scan(me, f);
        fits = !opened;
        if
        :: opened -> opened = false /* begin again, and join */
        :: else
        fi
    :: else
    fi;
#endif
    if
    :: fits && opened ->
        A(me, fits = (gen[p] == g));
        if
        :: fits ->
            look(me, p);
            if
            :: others ->
                A(me, enter(me, f));
                A(me, lock[f] = 0);
                goto hold
            :: else -> A(me, end_place(me, f))
            fi
        :: else -> fits = true
        fi
    :: else
    fi;
    if
    :: fits -> A(me, name = 0)
    :: else
    fi;
    A(me, bits[p] = bits[p] & ~BIT(me));
    A(me, if
          :: lock[f] == me + 1 -> lock[f] = 0
          :: else
          fi);
    goto again;

hold:
    A(me, assert(name == f && gen[p] == g && inside[me] == f));

    /* leave */
    A(me, inside[me] = 0; others = false; fits = false);
#ifndef NO_LOCK
    atomic {
        if
        :: DIES(me)
        :: !HELD(f) -> lock[f] = me + 1
#ifndef PATIENT
        :: HELD(f) -> goto detach
#endif
        fi
    }
#endif
#ifndef NO_INODE
    A(me, fits = (name == f));
#else
    fits = true;
#endif
    if
    :: fits ->
#ifdef GENERATION_BACK
        A(me, gen[p]++);
        look(me, p);
        if
        :: others -> A(me, gen[p]--)
        :: else -> A(me, name = 0)
        fi
#else
        look(me, p);
        if
        :: others
        :: else ->
            A(me, end_place(me, f));
            A(me, name = 0)
        fi
#endif
    :: else
    fi;
detach:
#ifndef HOME
    A(me, records[f] = records[f] & ~BIT(me));
#endif
    A(me, bits[p] = bits[p] & ~BIT(me));
    A(me, if
          :: lock[f] == me + 1 -> lock[f] = 0
          :: else
          fi);
    rounds--;
    if
    :: rounds > 0 -> goto again
    :: else
    fi;
dead:
    atomic { f = 0; p = 0; g = 0; m = 0; mask = 0; rounds = 0; others = false; opened = false; fits = false; over[me] = true }
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
#else
    (over[0] && over[1] && over[2] && over[3]);
#endif
#if defined(PATIENT) && DEATHS == 0
    assert(name == 0);
#endif
    atomic { alive[LAST] = true; run Process(LAST, 1) }
    (over[LAST]);
    assert(name == 0)
}
