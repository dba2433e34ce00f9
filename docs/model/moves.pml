/* How readers move to a successor's channel when the slots ended with their maker: docs/channels-protocol.md.  See README.md.
 *
 * Each generation of the channel is a file; `name` says for which one the name stands (0: none). The readers are in the
 * first, whose maker is dead. Successors come one after the other, and each but the last may die between any two steps. A
 * reader sleeps until its generation's bell rings or, once it knows that this one has moved, until a file is made in the
 * folder. The last successor's frame reaches every reader, or somebody waits for ever, which spin finds.
 */
#ifndef READERS
#define READERS 2
#endif
#ifndef SUCCESSORS
#define SUCCESSORS 2
#endif
#define REMOVALS 1          /* by each reader, of a file that nobody is in yet */
#define G (1 + SUCCESSORS + READERS * REMOVALS * SUCCESSORS + 1)
#define MAYDIE if :: k < SUCCESSORS -> goto dies :: true fi
#define UNLINK(g) atomic { if :: name == g -> name = 0 :: else fi }

byte name = 1, made = 1, folder;
bool moved[G], serves[G], sent[G]; /* serves: the maker of its slots lives, and has its record there */
byte bell[G], members[G], joining[G], got;

proctype successor(byte k)
{
    byte g;
again:
    atomic { if :: name == 0 -> made++; name = made; folder++ :: else fi; g = name }
    MAYDIE;
    atomic { (joining[g] == 0) -> joining[g] = 1 + k }
    MAYDIE;
    if
    :: name != g -> joining[g] = 0; goto again
    :: name == g && members[g] == 0 -> serves[g] = true
    :: name == g && members[g] > 0 ->
#ifdef UNLINK_FIRST
       UNLINK(g); MAYDIE;
#endif
       moved[g] = true; MAYDIE;
#ifndef SILENT
       bell[g]++; MAYDIE;
#endif
       UNLINK(g); MAYDIE;
       joining[g] = 0; goto again
    fi;
    MAYDIE;
    joining[g] = 0;
    MAYDIE;
    sent[g] = true; bell[g]++;
    MAYDIE;
    goto end;
dies:
    atomic {
        if :: joining[g] == 1 + k -> joining[g] = 0 :: else fi;
        if :: serves[g] && members[g] == 0 -> serves[g] = false :: serves[g] && members[g] > 0 -> serves[g] = false; bell[g]++ :: else fi;
        run successor(k + 1)
    };
end:
    skip
}

proctype reader(byte me)
{
    byte g = 1, n, seen, f, removed;
    bool fresh = true;
    do
    :: seen = bell[g];
look:
       if
       :: moved[g] ->
#ifdef WATCH_LATE
          n = name; if :: fresh -> f = folder; fresh = false :: else fi;
#else
          if :: fresh -> f = folder; fresh = false :: else fi;
          n = name;
#endif
          if
          :: n != 0 ->
             atomic { (joining[n] == 0) -> joining[n] = 100 + me }
             if
             :: name == n && serves[n] -> members[n]++; joining[n] = 0; atomic { members[g]--; g = n; fresh = true }
             :: name == n && !serves[n] && members[n] == 0 ->
                if
                :: removed < REMOVALS -> removed++; UNLINK(n); joining[n] = 0
                :: else -> joining[n] = 0; (serves[n] || name != n); goto look
                fi
             :: else -> joining[n] = 0
             fi
          :: else
          fi;
          if
          :: !fresh -> (folder != f); f = folder
          :: else
          fi
       :: !moved[g] && sent[g] && serves[g] -> got++; break
       :: else -> (bell[g] != seen)
       fi
    od
}

init
{
    byte i;
    atomic {
        members[1] = READERS;
        run successor(1);
        for (i : 1 .. READERS) { run reader(i) }
    }
    (got == READERS)
}
