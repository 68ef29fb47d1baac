"""The cell table: views end with their owners, and ragged cells lose their rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ampjax.sched.cells import Cells


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=4), st.sets(st.integers(0, 4)))
def test_views_end_with_their_owners(views, ended):
    cells = Cells(width=1, n_links=0)
    owners, ended = cells.take(5, 0, np.arange(5), 1), sorted(ended)
    made = [cells.view(owners[np.array(of, int)], np.zeros(len(of), int)) for of in views]
    of = np.array([owner for owners_of in views for owner in owners_of], int)
    everybody = np.concatenate([owners, *made])
    cells.set_parts(everybody, [np.array([c]) for c in everybody])
    np.testing.assert_array_equal(cells.owner[everybody[5:]], owners[of])

    cells.give(owners[ended])
    gone = np.concatenate([np.isin(np.arange(5), ended), np.isin(of, ended)])
    assert cells.alive == len(everybody) - gone.sum()
    assert set(cells.rows) == set(everybody[~gone].tolist())
    np.testing.assert_array_equal(cells.owner[everybody[gone]], everybody[gone])

    left = owners[np.setdiff1d(np.arange(5), ended)]
    cells.give(left)
    assert cells.alive == 0 and not cells.rows
    again = cells.take(len(everybody), 0, np.zeros(len(everybody), int), 0)
    cells.give(again)  # nobody has a view any more
    assert cells.alive == 0


def test_growing_keeps_what_was_there():
    cells = Cells(width=1, n_links=0)
    owners = cells.take(200, 0, np.arange(200), 1)
    views = cells.view(np.repeat(owners, 3), np.arange(600))
    cells.set_parts(views[:2], [np.array([7]), np.array([8])])
    cells.give(owners)
    assert cells.alive == 0 and not cells.rows
