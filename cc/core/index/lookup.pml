/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of the lookup without a lock, which SPIN explores exhaustively (`make proof`): bucket.h,
 * striped_index.cc, the find loops, and the writers of HostStore.
 *
 * One key, K, is looked up by a reader, while two updaters change its row in place, each under the
 * lock of its bucket, and a structural writer, which has the stripe's mutex, grows and shrinks the
 * stripe, or with -DERASING erases K, gives its row to another key and takes it back. Array 1 has
 * one home bucket, array 2 has two, so an array read with the other's count leads astray. A row is
 * two words, which are equal in a whole row.
 *
 * Promises
 *   - A lookup returns a whole row of its own key.
 *   - It finds a key that is there all the time.
 *   - Two lookups by one reader do not go back in time.
 *   - No update is lost, whichever array the writer found the key through.
 *   - No thread reads an array that was freed.
 *   - No thread waits for ever.
 *
 * Memory. Each writer's stores become visible in any order (a buffer with a place for each
 * variable), except that a release fence, a release store and the end of a critical section wait
 * for all earlier stores. The store of a compare-and-swap keeps others from the lock at once, but
 * plain loads may see it late, as on machines with load-linked and store-conditional. Loads between
 * an acquire load and an acquire fence are done in any order. Not modelled: loads that go ahead of
 * those that give their address, stores that different processors see in different orders, more
 * than one lane and chains over several buckets, versions that wrap around (2^29 changes within one
 * lookup), and more than one stripe.
 *
 * Each of these takes a part of the protocol out, and SPIN finds what goes wrong:
 *   -DNO_READ_FENCE     the reader's check of the word may come before its reads of the row
 *   -DNO_CHECK          the reader does not look at the word again
 *   -DNO_LOCK_FENCE     a writer's stores to a row may be seen before its lock
 *   -DNO_RELEASE        a writer's stores to a row may be seen after it has unlocked
 *   -DNO_MOVED          growth publishes the new array and does not mark the old buckets
 *   -DNO_HOME_CHECK     the reader takes array and count without their sequence number
 *   -DNO_PUBLISH_FENCE  array and count may be seen before their sequence number is odd
 *   -DNO_WAIT_TO_DROP   outgrown arrays are freed while others are inside
 *   -DNO_ERASE_FIRST    with -DERASING: a row is given to another key before its own is erased
 */

#define K 1            /* the key */
#define J 2            /* another key, which gets K's row */
#define FREED 3        /* what memory that was freed holds for a key */
#define NO_ROW 0
#define ROW_ID 1

#define OF_K 32        /* a word of K's row: this, and the number of updates */
#define OF_J 64
#define LINK 96        /* a word of a row that was freed */

#define LOCKED 1
#define MOVED 2
#define VERSION 4

/* Variables in memory. Bucket 0 is that of array 1, buckets 1 and 2 are those of array 2. */
#define SEQUENCE 0
#define ARRAY 1
#define COUNT 2
#define KEY(b) (3 + (b))
#define ID(b) (6 + (b))
#define WORD(b) (9 + (b))
#define ROW(w) (12 + (w))
#define VARIABLES 14

#define WRITERS 3      /* two updaters and the structural writer */
#define PLACE(p, v) ((p) * VARIABLES + (v))

byte memory[VARIABLES];
byte waiting[WRITERS * VARIABLES];  /* stores that are not visible yet */
bit waits[WRITERS * VARIABLES];
byte num_waiting[WRITERS];

bit mutex;             /* of the stripe */
byte inside;           /* verbs that hold the content lock, shared */
byte updates;          /* that were finished */
byte writers_left = UPDATERS + 1;

#ifndef LOOKUPS
#define LOOKUPS 2
#endif
#ifndef UPDATES
#define UPDATES 1      /* by each updater */
#endif
#ifndef CHANGES
#define CHANGES 1      /* by the structural writer */
#endif
#ifndef UPDATERS
#define UPDATERS 2
#endif

inline make_visible(p, v) {
  memory[v] = waiting[PLACE(p, v)];
  waits[PLACE(p, v)] = 0;
  waiting[PLACE(p, v)] = 0;
  num_waiting[p]--
}

/* A relaxed store. One variable's stores are seen in their order. */
inline store(p, v, x) {
  atomic {
    if
    :: waits[PLACE(p, v)] -> make_visible(p, v)
    :: else
    fi;
    waiting[PLACE(p, v)] = x;
    waits[PLACE(p, v)] = 1;
    num_waiting[p]++
  }
}

/* A release fence, or what comes before a release store. */
inline release(p) { num_waiting[p] == 0 }

#define load(v, x) x = memory[v]

/* A writer sees its own stores. */
inline load_own(p, v, x) {
  atomic {
    if
    :: waits[PLACE(p, v)] -> x = waiting[PLACE(p, v)]
    :: else -> x = memory[v]
    fi
  }
}

/* Locks a bucket if its word is `seen`. */
inline try_lock(p, b, seen, done) {
  atomic {
    done = memory[WORD(b)] == seen && !waits[PLACE(0, WORD(b))] && !waits[PLACE(1, WORD(b))] &&
           !waits[PLACE(2, WORD(b))];
    if
    :: done ->
       waiting[PLACE(p, WORD(b))] = seen | LOCKED;
       waits[PLACE(p, WORD(b))] = 1;
       num_waiting[p]++
    :: else
    fi
  };
#ifndef NO_LOCK_FENCE
  if
  :: done -> release(p)
  :: else
  fi
#endif
}

inline unlock(p, b, seen, marks) {
#ifndef NO_RELEASE
  release(p);
#endif
  store(p, WORD(b), (seen + VERSION) | marks)
}

/* Where K's home is: bucket b. With a count of another array it lies elsewhere. */
inline find_home() {
  do
  :: atomic { !(memory[SEQUENCE] & 1) -> load(SEQUENCE, s) };
     if
     :: load(ARRAY, a); load(COUNT, c)
     :: load(COUNT, c); load(ARRAY, a)
     fi;
#ifdef NO_HOME_CHECK
     break
#else
     atomic {
       if
       :: memory[SEQUENCE] == s -> break
       :: else
       fi
     }
#endif
  od;
  atomic {
    assert(a == 2 || c == 1);  /* a home lies in its array */
    b = (a == 1 -> 0 : c);
    a = 0;
    c = 0
  }
}

/* Looks for K: its bucket b, the word w under which it was found, and whether it is there. */
inline find() {
  searching = 1;
  do
  :: atomic { !searching -> k = 0; r = 0; x = 0; s = 0; break }
  :: atomic { searching -> skip };
     find_home();
     do
     :: atomic {
          !(memory[WORD(b)] & LOCKED) -> load(WORD(b), w);
          if
          :: w & MOVED -> break
          :: else
          fi
        };
        if
        :: load(KEY(b), k); load(ID(b), r); load(WORD(b), x)
        :: load(ID(b), r); load(KEY(b), k); load(WORD(b), x)
#ifdef NO_READ_FENCE
        :: load(WORD(b), x); load(KEY(b), k); load(ID(b), r)
#endif
        fi;
        atomic {
          assert(k != FREED);
#ifdef NO_CHECK
          x = w;
#endif
          if
          :: x == w -> present = (k == K && r != NO_ROW); searching = 0; break
          :: else
          fi
        }
     od;
     atomic { !searching || memory[SEQUENCE] != s -> skip }  /* the new array comes in a moment */
  od
}

proctype Reader() {
  byte b, w, k, r, s, a, c, x, first, second, last, lookups;
  bit searching, present;
  do
  :: atomic { lookups == LOOKUPS -> break }
  :: atomic { lookups < LOOKUPS -> inside++ };
     do
     :: find();
        if
        :: !present -> break
        :: else
        fi;
        if
        :: load(ROW(0), first); load(ROW(1), second); load(WORD(b), x)
        :: load(ROW(1), second); load(ROW(0), first); load(WORD(b), x)
#ifdef NO_READ_FENCE
        :: load(WORD(b), x); load(ROW(0), first); load(ROW(1), second)
#endif
        fi;
        atomic {
#ifdef NO_CHECK
          x = w;
#endif
          if
          :: x == w -> break
          :: else
          fi
        }
     od;
     atomic {
#ifdef ERASING
       assert(!present || (first == second && first >= OF_K && first < OF_J));
#else
       assert(present);                                          /* it is there all the time */
       assert(first == second && first >= OF_K && first < OF_J); /* a whole row of its own key */
       assert(first >= last);                                    /* not back in time */
       last = first;
#endif
       inside--;
       lookups++;
       b = 0; w = 0; x = 0; first = 0; second = 0; present = 0
     }
  od
}

inline end_writer(p) {
  release(p);
  atomic {
    writers_left--;
    if
    :: writers_left == 0 ->
#ifndef ERASING
       assert(memory[ROW(0)] == OF_K + updates && memory[ROW(1)] == OF_K + updates);
#endif
       skip
    :: else
    fi
  }
}

proctype Updater(byte p) {
  byte b, w, k, r, s, a, c, x, first, second, done_updates;
  bit searching, present, locked;
  do
  :: atomic { done_updates == UPDATES -> break }
  :: atomic { done_updates < UPDATES -> inside++ };
     do
     :: find();
        if
        :: !present -> break
        :: else
        fi;
        try_lock(p, b, w, locked);
        if
        :: locked -> break
        :: else
        fi
     od;
     if
     :: present ->
        load_own(p, ROW(0), first);
        load_own(p, ROW(1), second);
        assert(first == second && first >= OF_K && first < OF_J); /* nobody else is writing */
        store(p, ROW(0), first + 1);
        store(p, ROW(1), first + 1);
        unlock(p, b, w, 0);
        updates++
     :: else
     fi;
     atomic {
       release(p) -> inside--;
       done_updates++;
       b = 0; w = 0; first = 0; second = 0; present = 0; locked = 0
     }
  od;
  end_writer(p)
}

/* Of the structural writer, which knows where K is. */
inline lock_bucket() {
  do
  :: atomic { !waits[PLACE(p, WORD(b))] && !(memory[WORD(b)] & LOCKED) -> load(WORD(b), w) };
     try_lock(p, b, w, locked);
     if
     :: locked -> break
     :: else
     fi
  od
}

inline take_mutex() { atomic { !mutex -> mutex = 1 } }
inline give_mutex() { release(p); mutex = 0 }

/* Moves K to the other array, which has one bucket more or less. */
inline change_array() {
  to = 3 - array;
  b = (array == 1 -> 0 : 2);
  load_own(p, KEY(b), k);
  load_own(p, ID(b), r);
  if
  :: to == 1 -> store(p, KEY(0), k); store(p, ID(0), r); store(p, WORD(0), 0)
  :: else ->
     store(p, KEY(1), 0); store(p, ID(1), NO_ROW); store(p, WORD(1), 0);
     store(p, KEY(2), k); store(p, ID(2), r); store(p, WORD(2), 0)
  fi;
#ifndef NO_MOVED
  if
  :: array == 2 -> b = 1; lock_bucket(); unlock(p, b, w, MOVED); b = 2
  :: else
  fi;
  lock_bucket();
  unlock(p, b, w, MOVED);
#endif
  load_own(p, SEQUENCE, s);
  store(p, SEQUENCE, s + 1);
#ifndef NO_PUBLISH_FENCE
  release(p);
#endif
  store(p, ARRAY, to);
  store(p, COUNT, to);
  release(p);
  store(p, SEQUENCE, s + 2);
  array = to
}

inline free_outgrown() {
  if
  :: array == 2 -> memory[KEY(0)] = FREED; memory[ID(0)] = ROW_ID
  :: else ->
     memory[KEY(1)] = FREED; memory[ID(1)] = ROW_ID;
     memory[KEY(2)] = FREED; memory[ID(2)] = ROW_ID
  fi
}

/* Erases K, whose row another key has for a while; then K comes back. */
inline erase_and_insert() {
  b = (array == 1 -> 0 : 2);
#ifdef NO_ERASE_FIRST
  store(p, ROW(0), OF_J);
  store(p, ROW(1), OF_J);
#endif
  lock_bucket();
  store(p, ID(b), NO_ROW);
  unlock(p, b, w, 0);
  store(p, ROW(0), LINK);
  store(p, ROW(1), LINK);
  give_mutex();
  take_mutex();
  store(p, ROW(0), OF_J);
  store(p, ROW(1), OF_J);
  store(p, ROW(0), LINK);
  store(p, ROW(1), LINK);
  release(p);
  store(p, ROW(0), OF_K);
  store(p, ROW(1), OF_K);
  lock_bucket();
  store(p, KEY(b), K);
  store(p, ID(b), ROW_ID);
  unlock(p, b, w, 0)
}

proctype Structure(byte p) {
  byte b, w, k, r, s, to, changes;
  byte array = 1;
  bit locked;
  do
  :: changes == CHANGES -> break
  :: else ->
     inside++;
     take_mutex();
#ifdef ERASING
     if
     :: erase_and_insert()
     :: change_array()
     fi;
#else
     change_array();
#endif
     give_mutex();
     inside--;
     /* It goes on growing only when it has freed what it outgrew: there are two arrays here. */
#ifdef NO_WAIT_TO_DROP
     d_step { free_outgrown() };
#else
     atomic { inside == 0 -> free_outgrown() };
#endif
     changes++
  od;
  end_writer(p)
}

#define SEE(p, v) :: atomic { waits[PLACE(p, v)] -> make_visible(p, v) }
#define SEE_ALL(p)                                              \
  SEE(p, SEQUENCE) SEE(p, ARRAY) SEE(p, COUNT)                  \
  SEE(p, KEY(0)) SEE(p, KEY(1)) SEE(p, KEY(2))                  \
  SEE(p, ID(0)) SEE(p, ID(1)) SEE(p, ID(2))                     \
  SEE(p, WORD(0)) SEE(p, WORD(1)) SEE(p, WORD(2))               \
  SEE(p, ROW(0)) SEE(p, ROW(1))

/* Makes stores visible, at any time and in any order. */
active proctype Memory() {
end:
  do
  SEE_ALL(0)
  SEE_ALL(1)
  SEE_ALL(2)
  od
}

init {
  atomic {
    memory[ARRAY] = 1;
    memory[COUNT] = 1;
    memory[KEY(0)] = K;
    memory[ID(0)] = ROW_ID;
    memory[KEY(1)] = FREED;
    memory[KEY(2)] = FREED;
    memory[ROW(0)] = OF_K;
    memory[ROW(1)] = OF_K;
    run Reader();
    run Updater(0);
    if
    :: UPDATERS == 2 -> run Updater(1)
    :: else
    fi;
    run Structure(2)
  }
}
