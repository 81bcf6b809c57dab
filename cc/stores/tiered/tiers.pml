/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of lookups beside the moves of a row between tiers, which SPIN explores exhaustively
 * (`make proof`): a cache over a lower tier of two parts, host memory over a disk (TieredStore,
 * TwoTiers).
 *
 * A reader looks a row up, while a trainer changes it, an evictor writes it down and drops it from
 * the cache, and a sweep moves it down within the lower tier, or forgets it there if the cache has
 * it. A row's value is the number of its last change. With -DERASING, the row is also removed. With
 * -DREPLACING, it is also overwritten from outside while writers wait.
 *
 * Promises
 *   - A lookup finds a row that is present all the time.
 *   - Two lookups by a reader do not go back in time.
 *   - No change is lost.
 *   - No thread waits for ever.
 *
 * Each read of a tier, and each change of a tier, is a single step: they are atomic by themselves
 * (cc/core/index/lookup.pml, and the mutexes of the tiers). Not modelled: failures, batches of
 * several rows, policies, lookups that are a part of training, and the order of memory, which locks
 * and the release of each counter give.
 *
 * Each of these options removes a part of the protocol, and SPIN finds the error:
 *   -DNO_MOVES         a lookup does not check whether rows were promoted meanwhile
 *   -DLEAVE_FIRST      a row leaves its old place in the lower tier before it is in the new place
 *   -DDROP_BESIDE      rows are dropped from the cache while other threads are inside
 *   -DDROP_CHANGED     rows that changed after they were written down are dropped too
 *   -DSWEEP_BESIDE     the lower tier forgets rows while rows are promoted
 *   -DERASE_ABOVE_FIRST  with -DERASING: a row leaves the cache before the lower tier
 *   -DNO_REPLACE_MOVES   with -DREPLACING: an overwritten row does not count as a promoted row
 * Without the next part, lookups of the store still work, because a row that moves up within the
 * lower tier is in the cache as well. TwoTiers has the part for callers that use it alone:
 *   -DNO_UPS           a lookup in the lower tier does not check whether rows moved up there
 */

#ifndef TIMES
#define TIMES 2  /* how often each process does what it does */
#endif

bit in_cache, changed;
byte cached;         /* the value there */
bit in_host, shared; /* shared: the cache has it too, or will in a moment */
byte hosted;
bit on_disk = 1;      /* where it is at first */
byte stored;

byte moves, ups;     /* times that a row came up: to the cache, to host memory */
byte last_change;
bit erased;          /* at some time */

byte inside, writing;                 /* who shares the content and the writers' lock */
bit alone, paused, promotion, tier;   /* who has these locks for itself */

inline share_content() { atomic { !alone -> inside++ } }
inline leave_content() { inside-- }
inline share_writers() { atomic { !paused -> writing++ } }
inline leave_writers() { writing-- }
inline take(lock) { atomic { !lock -> lock = 1 } }
inline give(lock) { lock = 0 }

inline look_in_cache(found, value) { d_step { found = in_cache; value = (in_cache -> cached : 0) } }
inline look_in_host(found, value) { d_step { found = in_host; value = (in_host -> hosted : 0) } }
inline look_on_disk(found, value) { d_step { found = on_disk; value = (on_disk -> stored : 0) } }

/* TwoTiers::Get of a row that stays what it is. */
inline get_cold(found, value, seen) {
  seen = ups;
  look_in_host(found, value);
  if
  :: found
  :: else -> look_on_disk(found, value)
  fi;
#ifndef NO_UPS
  if
  :: !found && seen != ups ->
     take(tier);
     look_in_host(found, value);
     if
     :: found
     :: else -> look_on_disk(found, value)
     fi;
     give(tier)
  :: else
  fi
#endif
}

/* TwoTiers::Put of a row that the cache has too. */
inline put_shared(value) {
  take(tier);
#ifdef LEAVE_FIRST
  on_disk = 0;
#endif
  d_step { in_host = 1; hosted = value; shared = 1 };
  ups++;
  on_disk = 0;
  give(tier)
}

inline erase_in_lower_tier() {
  take(tier);
  d_step { in_host = 0; shared = 0 };
  on_disk = 0;
  give(tier)
}

active proctype Reader() {
  byte seen, seen_ups, value, last, times;
  bit found;
  do
  :: times == TIMES -> break
  :: else ->
     seen = moves;
     share_content();
     look_in_cache(found, value);
     if
     :: found
     :: else ->
        get_cold(found, value, seen_ups);
#ifndef NO_MOVES
        if
        :: !found && seen != moves -> look_in_cache(found, value)
        :: else
        fi
#endif
     fi;
     leave_content();
     assert(found || erased);        /* it finds a row that is there all the time */
     assert(!found || value >= last); /* not back in time */
     if
     :: found -> last = value
     :: else
     fi;
     times++
  od
}

/* Brings the row up if it is below, and changes it. */
active proctype Trainer() {
  byte value, seen_ups, times;
  bit found;
  do
  :: times == TIMES -> break
  :: else ->
     share_writers();
     share_content();
     take(promotion);
     if
     :: !in_cache ->
        take(tier);
        look_in_host(found, value);
        if
        :: found -> shared = 1
        :: else ->
           look_on_disk(found, value)
        fi;
        give(tier);
        if
        :: found ->
           d_step { in_cache = 1; cached = value; changed = 0 };
           moves++
        :: else
        fi
     :: else
     fi;
     give(promotion);
     d_step { last_change++; in_cache = 1; cached = last_change; changed = 1 };
     leave_content();
     leave_writers();
     times++
  od
}

/* Writes the row down beside others, and drops it while nobody is inside. */
active proctype Evictor() {
  byte value, times;
  bit was_changed, is_stored;
  do
  :: times == TIMES -> break
  :: else ->
     share_writers();
     share_content();
     take(promotion);
     if
     :: in_cache ->
        is_stored = in_host || on_disk;
        was_changed = changed;
        if
        :: was_changed || !is_stored ->
           changed = 0;
           value = cached;
           put_shared(value)
        :: else
        fi
     :: else
     fi;
     give(promotion);
     leave_content();
#ifdef DROP_BESIDE
     share_content();
#else
     atomic { inside == 0 && !alone -> alone = 1 };
#endif
     if
#ifdef DROP_CHANGED
     :: in_cache && (in_host || on_disk) ->
#else
     :: in_cache && (in_host || on_disk) && !changed ->
#endif
        in_cache = 0;
        shared = 0
     :: else
     fi;
#ifdef DROP_BESIDE
     leave_content();
#else
     alone = 0;
#endif
     leave_writers();
     times++
  od
}

/* What a Put of other rows does to this one. */
active proctype Sweep() {
  byte value, times;
  do
  :: times == TIMES -> break
  :: else ->
     share_content();
#ifndef SWEEP_BESIDE
     take(promotion);
#endif
     take(tier);
     if
     :: in_host && shared -> in_host = 0
     :: in_host && !shared ->
        value = hosted;
#ifdef LEAVE_FIRST
        in_host = 0;
#endif
        d_step { on_disk = 1; stored = value };
        in_host = 0
     :: else
     fi;
     give(tier);
#ifndef SWEEP_BESIDE
     give(promotion);
#endif
     leave_content();
     times++
  od
}

#ifdef ERASING
active proctype Eraser() {
  share_writers();
  share_content();
  take(promotion);
  erased = 1;
#ifdef ERASE_ABOVE_FIRST
  in_cache = 0;
  erase_in_lower_tier();
#else
  erase_in_lower_tier();
  in_cache = 0;
#endif
  give(promotion);
  leave_content();
  leave_writers()
}
#endif

#ifdef REPLACING
/* TieredStore::Replace: new rows for keys that the cache does not have. */
active proctype Replacer() {
  atomic { writing == 0 && !paused -> paused = 1 };
  share_content();
  if
  :: !in_cache ->
     d_step { last_change++; in_cache = 1; cached = last_change; changed = 1 };
#ifndef NO_REPLACE_MOVES
     moves++;
#endif
     erase_in_lower_tier()
  :: else
  fi;
  leave_content();
  paused = 0
}
#endif

/* When all have ended. */
active proctype End() {
  timeout;
  assert(erased || (in_cache -> cached : (in_host -> hosted : stored)) == last_change);
  assert(erased || in_cache || in_host || on_disk)
}
