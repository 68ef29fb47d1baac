"""Loops over ids, compiled by Numba. To import this module imports Numba, so a vocabulary waits for its first call.

`t` is always an `IdArrays`. No loop makes an array, and none is given more ids than its table has entries for.
"""

from __future__ import annotations

from ampjax.sched.loops.compiled import entry, inlined
from ampjax.sparse.vocabulary.id_columns import (
    COUNT,
    HEAD,
    ID,
    N_EVICTED,
    N_FORGOTTEN,
    N_FREE,
    N_REFUSED,
    N_USED,
    NONE,
    PLACE,
    SEEN,
    SLOT_ENTRY,
    SLOT_ID,
    TAIL,
)

MULTIPLIERS = 0x2127599BF4325C37, 0x165667B19E3779F9
"""Odd, as in `sched.loops.find_program`."""


# ---- one id ----------------------------------------------------------------------------------------------------------


@inlined
def mix(number):
    """Mixes all bits of an id into the lower ones, by steps that can be undone.

    Args:
      number: The id, int64.

    Returns:
      The mixed number, int64.
    """
    number = number * MULTIPLIERS[0]
    number = number ^ ((number >> 32) & 0xFFFFFFFF)
    number = number * MULTIPLIERS[1]
    return number ^ ((number >> 32) & 0xFFFFFFFF)


@inlined
def slot_of(slots, number):
    """Finds the slot of an id, or the empty slot where the id would go.

    Args:
      slots: As `IdArrays.slots`; at least one is empty.
      number: The id.

    Returns:
      The slot.
    """
    mask = len(slots) - 1
    slot = mix(number) & mask
    # The id is in the first slot that is not taken by another one.
    while slots[slot, SLOT_ENTRY] != NONE and slots[slot, SLOT_ID] != number:
        slot = (slot + 1) & mask
    return slot


@inlined
def put_last(t, e):
    """Gives an entry the last place of the queue.

    Args:
      t: The table.
      e: The entry.
    """
    if t.numbers[TAIL] == len(t.queue):
        kept = 0
        # The queue is full: places that are void are left out. At least half of them are, as an
        # entry has one that is not.
        for place in range(t.numbers[HEAD], t.numbers[TAIL]):
            other = t.queue[place]
            if t.lines[other, PLACE] == place:
                t.queue[kept] = other
                t.lines[other, PLACE] = kept
                kept += 1
        t.numbers[HEAD] = 0
        t.numbers[TAIL] = kept
    place = t.numbers[TAIL]
    t.queue[place] = e
    t.lines[e, PLACE] = place
    t.numbers[TAIL] = place + 1


@inlined
def touch(t, e, count, step):
    """Notes that an id was seen.

    Args:
      t: The table.
      e: Its entry.
      count: How often.
      step: In which call. Within a call an entry keeps the place that it got when it was first seen.
    """
    t.lines[e, COUNT] += count
    if t.lines[e, SEEN] != step:
        t.lines[e, SEEN] = step
        put_last(t, e)


@inlined
def add(t, number, count, step):
    """Gives an id an entry: the one that was freed last, or else one that was never used.

    Args:
      t: The table, which has one.
      number: The id, which has none.
      count: How often it was seen.
      step: In which call it was seen last.

    Returns:
      The entry.
    """
    # An entry: entries are used again before new ones, so that the table stays dense.
    if t.numbers[N_FREE] > 0:
        t.numbers[N_FREE] -= 1
        e = t.free[t.numbers[N_FREE]]
    else:
        e = t.numbers[N_USED]
        t.numbers[N_USED] += 1
    # Its line, then the slot by which the id is found, and the end of the list from old to new.
    t.lines[e, ID] = number
    t.lines[e, COUNT] = count
    t.lines[e, SEEN] = step
    slot = slot_of(t.slots, number)
    t.slots[slot, SLOT_ID] = number
    t.slots[slot, SLOT_ENTRY] = e
    put_last(t, e)
    return e


@inlined
def drop(t, e):
    """Takes an id out of a table, and frees its entry.

    Args:
      t: The table.
      e: The entry.
    """
    slots = t.slots
    mask = len(slots) - 1
    hole = slot_of(slots, t.lines[e, ID])
    slot = (hole + 1) & mask
    # Ids after the hole move into it if they would not be found behind an empty slot: those whose
    # search begins at the hole or before.
    while slots[slot, SLOT_ENTRY] != NONE:
        begin = mix(slots[slot, SLOT_ID]) & mask
        if ((slot - begin) & mask) >= ((slot - hole) & mask):
            slots[hole, SLOT_ID] = slots[slot, SLOT_ID]
            slots[hole, SLOT_ENTRY] = slots[slot, SLOT_ENTRY]
            hole = slot
        slot = (slot + 1) & mask
    slots[hole, SLOT_ENTRY] = NONE
    t.lines[e, PLACE] = NONE
    t.free[t.numbers[N_FREE]] = e
    t.numbers[N_FREE] += 1


@inlined
def oldest(t):
    """Finds the id that was seen longest ago; the queue begins at its place then.

    Args:
      t: The table.

    Returns:
      Its entry; `NONE` if there is no id.
    """
    # Void places at the queue's head are left behind for good.
    while t.numbers[HEAD] < t.numbers[TAIL]:
        e = t.queue[t.numbers[HEAD]]
        if t.lines[e, PLACE] == t.numbers[HEAD]:
            return e
        t.numbers[HEAD] += 1
    return NONE


# ---- many ids --------------------------------------------------------------------------------------------------------


@entry
def fill_slots(t):
    """Enters all ids of the queue into empty slots, when there are other slots than before.

    Args:
      t: The table.
    """
    for place in range(t.numbers[HEAD], t.numbers[TAIL]):
        e = t.queue[place]
        # Each id once: at its last place.
        if t.lines[e, PLACE] == place:
            slot = slot_of(t.slots, t.lines[e, ID])
            t.slots[slot, SLOT_ID] = t.lines[e, ID]
            t.slots[slot, SLOT_ENTRY] = e


@entry
def find(t, ids, entries):
    """Finds the entries of ids.

    Args:
      t: The table.
      ids: `[n]`.
      entries: `[n]`, to be written: entries, or `NONE`.
    """
    # Nothing is noted: it is as if nobody had asked.
    for i in range(len(ids)):
        entries[i] = t.slots[slot_of(t.slots, ids[i]), SLOT_ENTRY]


@entry
def see(t, ids, step, entries, misses):
    """Finds the entries of ids, and notes that the ids were seen.

    Args:
      t: The table.
      ids: `[n]`.
      step: The call's number.
      entries: `[n]`, to be written: entries, or `NONE`.
      misses: `[n]`, to be written: the places of ids without an entry.

    Returns:
      How many places these are.
    """
    n_misses = 0
    # In the order of the batch, since that is the order in which ids of one call grow old.
    for i in range(len(ids)):
        e = t.slots[slot_of(t.slots, ids[i]), SLOT_ENTRY]
        entries[i] = e
        if e == NONE:
            misses[n_misses] = i
            n_misses += 1
        else:
            touch(t, e, 1, step)
    return n_misses


@entry
def find_distinct(ids, misses, slots, distinct, counts, places):
    """Finds the distinct ids among some ids, in the order of their first places.

    Args:
      ids: `[n]`.
      misses: `[m]`, places of the ids that are meant.
      slots: As `IdArrays.slots`, all empty, to be written.
      distinct: `[m]`, to be written.
      counts: `[m]`, to be written: how often each of them comes.
      places: `[m]`, to be written: for each miss the place of its id in `distinct`.

    Returns:
      How many they are.
    """
    n_distinct = 0
    # In the order of the batch, so the same batch gives ids the same rows.
    for j in range(len(misses)):
        number = ids[misses[j]]
        slot = slot_of(slots, number)
        if slots[slot, SLOT_ENTRY] == NONE:
            slots[slot, SLOT_ID] = number
            slots[slot, SLOT_ENTRY] = n_distinct
            distinct[n_distinct] = number
            counts[n_distinct] = 0
            n_distinct += 1
        place = slots[slot, SLOT_ENTRY]
        counts[place] += 1
        places[j] = place
    return n_distinct


@entry
def drop_older(t, step, dropped):
    """Takes out all ids that were last seen before a call.

    Args:
      t: The table.
      step: The call's number.
      dropped: To be written: their entries, which keep their ids until they are used again.

    Returns:
      How many they were.
    """
    n_dropped = 0
    e = oldest(t)
    # The oldest first, until one is young enough: all behind it in the queue are younger.
    while e != NONE and t.lines[e, SEEN] < step:
        drop(t, e)
        dropped[n_dropped] = e
        n_dropped += 1
        e = oldest(t)
    return n_dropped


@entry
def list_oldest(t, step, found):
    """Lists the ids that were seen longest ago, the oldest first.

    Args:
      t: The table.
      step: Only ids that were last seen before this call.
      found: To be written: as many of their entries as it has room for.

    Returns:
      How many they are.
    """
    n_found = 0
    place = t.numbers[HEAD]
    # From the queue's head, without void places, until an id is too young.
    while place < t.numbers[TAIL] and n_found < len(found):
        e = t.queue[place]
        if t.lines[e, PLACE] == place:
            if t.lines[e, SEEN] >= step:
                break
            found[n_found] = e
            n_found += 1
        place += 1
    return n_found


@entry
def count_ripe(candidates, ids, counts, admit_after):
    """Counts the ids that have been seen often enough.

    Args:
      candidates: The table of candidates.
      ids: `[n]`, each once.
      counts: `[n]`, how often each was seen in this call.
      admit_after: How often is enough.

    Returns:
      Their number.
    """
    n_ripe = 0
    # What was seen in earlier calls counts, too.
    for i in range(len(ids)):
        total = counts[i]
        e = candidates.slots[slot_of(candidates.slots, ids[i]), SLOT_ENTRY]
        if e != NONE:
            total += candidates.lines[e, COUNT]
        n_ripe += total >= admit_after
    return n_ripe


@inlined
def make_room(t, n_entries, victims, tally):
    """Frees an entry if none is free.

    Args:
      t: The table.
      n_entries: How many entries it may use.
      victims: Entries that may be freed, in this order.
      tally: The call's tally.

    Returns:
      Whether there is a free entry.
    """
    if t.numbers[N_FREE] > 0 or t.numbers[N_USED] < n_entries:
        return True
    if tally[N_EVICTED] == len(victims):
        return False
    drop(t, victims[tally[N_EVICTED]])
    tally[N_EVICTED] += 1
    return True


@inlined
def remember(t, e, number, count, step, n_entries, forgotten, tally):
    """Notes that a candidate was seen; if there is no room for a new one, the oldest is forgotten.

    Args:
      t: The table of candidates.
      e: The candidate's entry, or `NONE`.
      number: The id.
      count: How often it was seen.
      step: The call's number.
      n_entries: How many entries the table may use.
      forgotten: To be written: ids that are forgotten.
      tally: The call's tally.
    """
    if e != NONE:
        touch(t, e, count, step)
    elif n_entries > 0:
        if t.numbers[N_FREE] == 0 and t.numbers[N_USED] == n_entries:
            old = oldest(t)
            forgotten[tally[N_FORGOTTEN]] = t.lines[old, ID]
            tally[N_FORGOTTEN] += 1
            drop(t, old)
        add(t, number, count, step)


@entry
def take_in(
    known,
    candidates,
    ids,
    counts,
    step,
    admit_after,
    n_known,
    n_candidates,
    victims,
    entries,
    forgotten,
    tally,
):
    """Admits ids that have been seen often enough; others become candidates, or stay candidates.

    Args:
      known: The table of admitted ids.
      candidates: The table of candidates.
      ids: `[n]`, each once; none is known.
      counts: `[n]`, how often each was seen in this call.
      step: The call's number.
      admit_after: How often is enough.
      n_known: How many entries of `known` may be used.
      n_candidates: How many of `candidates` may be used.
      victims: Entries of known ids that may be freed for others, in this order.
      entries: `[n]`, to be written: entries, or `NONE`.
      forgotten: `[n]`, to be written: candidates that are forgotten for others.
      tally: The call's tally, all zero.
    """
    # One after the other, in the order in which they first came: who comes first gets the room.
    for i in range(len(ids)):
        # A candidate's count goes on from earlier calls.
        total = counts[i]
        c = candidates.slots[slot_of(candidates.slots, ids[i]), SLOT_ENTRY]
        if c != NONE:
            total += candidates.lines[c, COUNT]
        # Room is asked for only where the id is ripe, as that may free another id's entry.
        is_ripe = total >= admit_after
        if is_ripe and make_room(known, n_known, victims, tally):
            entries[i] = add(known, ids[i], total, step)
            # An id is in one table at a time.
            if c != NONE:
                drop(candidates, c)
        else:
            entries[i] = NONE
            tally[N_REFUSED] += is_ripe
            remember(candidates, c, ids[i], counts[i], step, n_candidates, forgotten, tally)
