"""Finding programs: by a key of 128 bits of the numbers that are pumped for an instance, in a table with open addressing.

Each half of a key is a chain of Murmur's steps with multipliers of its own. Every step can be undone, so instances differ in both halves unless two differences undo each other
in both by chance, as likely for two of a million as that a memory error goes unnoticed.
"""

from __future__ import annotations

from ampjax.sched.layout import columns as c
from ampjax.sched.loops.compiled import entry, inlined
from ampjax.unfold.program_keys import POSITION, PUMP

MULTIPLIERS_A = 0x2127599BF4325C37, 0x165667B19E3779F9, 0x27D4EB2F165667C5
MULTIPLIERS_B = 0x1B03738712FAD5C9, 0x369DEA0F31A53F85, 0x3C6EF372FE94F82B
"""Odd multipliers: of a number, twice, and of what has been mixed."""


@inlined
def fold_halves(h):
    """Mixes the upper half of a number into its lower half.

    Args:
      h: The number, int64.

    Returns:
      The mixed number, int64.
    """
    return h ^ ((h >> 32) & 0xFFFFFFFF)


@inlined
def mix_number(h, x, by):
    """Mixes a number into half a key.

    Args:
      h: The half so far, int64.
      x: The number, int64.
      by: Three multipliers.

    Returns:
      The new half, int64.
    """
    return fold_halves((h ^ fold_halves(x * by[0]) * by[1]) * by[2])


@entry
def find(numbers, ids, salt, programs, table, keys, places):
    """Finds the programs of instances.

    Args:
      numbers: `[m, columns]`: what is pumped for them (`unfold.program_keys`).
      ids: `[k]`: what else tells them apart.
      salt: A number for what is the same for all of them.
      programs: `ProgramStore.programs`.
      table: `[2 ** n]` int64: the places of programs, by their keys; not full.
      keys: `[k, 2]` int64, to be written: the instances' keys.
      places: `[k]` int64, to be written: the places of their programs, or -1.

    Returns:
      How many have none yet.
    """
    missing = 0
    # A key begins with what tells instances apart beside their messages: both halves, each with its
    # own multipliers.
    for k in range(len(ids)):
        keys[k, 0] = mix_number(salt, ids[k], MULTIPLIERS_A)
        keys[k, 1] = mix_number(salt, ids[k], MULTIPLIERS_B)
    # Each pumped message is mixed into its instance's key. Order counts, so messages must come in
    # the order of the batch.
    for j in range(len(numbers)):
        k = numbers[j, POSITION]
        a = keys[k, 0]
        b = keys[k, 1]
        for column in range(PUMP, numbers.shape[1]):
            a = mix_number(a, numbers[j, column], MULTIPLIERS_A)
            b = mix_number(b, numbers[j, column], MULTIPLIERS_B)
        keys[k, 0] = a
        keys[k, 1] = b
    # Keys are complete only now, for an instance's messages need not stand side by side.
    for k in range(len(ids)):
        places[k] = table[entry_of(programs, table, keys[k, 0], keys[k, 1])]
        missing += places[k] < 0
    return missing


@entry
def insert(programs, places, table):
    """Enters programs into the hash table, which has room.

    Args:
      programs: `ProgramStore.programs`, with their keys.
      places: `[n]`: the programs' places.
      table: `[2 ** n]` int64: the hash table.
    """
    for place in places:
        at = entry_of(
            programs,
            table,
            programs[place, c.KEY],
            programs[place, c.KEY + 1],
        )
        table[at] = place


@entry
def remove(programs, places, table):
    """Removes programs from the hash table.

    Args:
      programs: `ProgramStore.programs`, with their keys.
      places: `[n]`: the programs' places.
      table: `[2 ** n]` int64: the hash table.
    """
    for place in places:
        at = entry_of(
            programs,
            table,
            programs[place, c.KEY],
            programs[place, c.KEY + 1],
        )
        # The entry is marked, not freed: keys that were stored behind it must still be found.
        if table[at] == place:
            table[at] = c.DROPPED


@inlined
def entry_of(programs, table, a, b):
    """Finds a key in the hash table.

    Args:
      programs: `ProgramStore.programs`.
      table: `[2 ** n]` int64: the hash table.
      a: The first half of the key.
      b: The second half.

    Returns:
      The entry of the key, or the free one where it is missed.
    """
    mask = len(table) - 1
    at = a & mask
    # Collisions go to the next entries. The table is never full, so the search meets a free one.
    while table[at] != c.NOBODY:
        place = table[at]
        # A dropped entry is passed: the key may stand behind it.
        if place >= 0 and programs[place, c.KEY] == a and programs[place, c.KEY + 1] == b:
            break
        at = (at + 1) & mask
    return at
