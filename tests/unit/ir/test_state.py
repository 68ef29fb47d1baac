"""States: columns with names that read, change and compare as users expect."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import GraphError, MessageError
from ampjax.ir.state import INSTANCE, Layout, State, apply, column, sample, try_function


def test_columns_and_instance():
    s = State.of(
        instance=[3, 4],
        t=[0, 1],
        length=5,
    )
    assert s.fields == ("t", "length") and len(s) == 2
    assert s.instance.tolist() == [3, 4]
    assert s.t.tolist() == [0, 1]
    assert s.length.tolist() == [5, 5]


def test_replace_leaves_the_original_alone_and_may_add_a_field():
    s = State.of(t=[0, 1])
    more = s.replace(t=s.t + 1, u=7)
    assert s.fields == ("t",)
    assert s.t.tolist() == [0, 1]
    assert more.fields == ("t", "u")
    assert more.t.tolist() == [1, 2]
    assert more.u.tolist() == [7, 7]


def test_drop_and_put_back_starts_from_zero():
    s = State.of(t=[5, 6], u=1).drop("t")
    assert s.fields == ("u",)
    with pytest.raises(AttributeError, match=r"no state field `t`; there are \('instance', 'u'\)"):
        s.t
    assert s.replace(t=0).t.tolist() == [0, 0]
    assert not s.array[:, Layout(("t", "u")).column("t")].any()


def test_take_rows_by_number_and_by_truth():
    s = State.of(t=[5, 6, 7])
    assert s.take(np.array([2, 0])).t.tolist() == [7, 5]
    assert s.take(s.t > 5).t.tolist() == [6, 7]


def test_the_instance_stays():
    with pytest.raises(AttributeError, match="`instance` can't be replaced"):
        State.of(t=0).replace(instance=1)


def test_a_view_of_a_wider_array_shows_its_fields_only():
    layout = Layout(("t", "u", "v"))
    s = State(
        np.arange(10).reshape(2, 5),
        layout,
        ("v",),
    )
    assert layout.width == 5 and layout.column("instance") == INSTANCE
    assert s.v.tolist() == [4, 9]
    with pytest.raises(AttributeError):
        s.u


def test_repr():
    assert repr(State.of(instance=2, t=1)) == "State(instance=2, t=1)"
    assert repr(State.of(t=[1, 2])) == "State(2 rows: instance, t)"


@given(
    st.lists(
        st.integers(-(2**31), 2**31),
        min_size=1,
        max_size=20,
    ),
    st.integers(-100, 100),
)
def test_a_function_on_a_column_is_the_function_on_each_row(values, by):
    def f(s):
        return s.replace(
            t=s.t * 2 + by,
            big=s.t > by,
        )

    whole = f(State.of(t=values))
    rows = [f(State.of(t=value)) for value in values]
    assert whole.t.tolist() == [row.t[0] for row in rows]
    assert whole.big.tolist() == [row.big[0] for row in rows]


def test_samples_are_fixed_start_at_zero_and_stay_small():
    s = sample(("t", "n"))
    again = sample(("t", "n"))
    assert (s.array == again.array).all()
    assert s.fields == ("t", "n")
    assert s.take(np.array([0])).t == 0
    assert s.t.min() >= 0
    assert s.t.max() < 50


# What user functions may get wrong.


def test_try_function_names_the_missing_field():
    with pytest.raises(
        GraphError,
        match=r"node `c`: expected a function of the state fields \('instance', 't'\), got `no state field `u`",
    ):
        try_function("node `c`", lambda s: s.u, sample(("t",)))


def test_try_function_says_how_to_write_it():
    with pytest.raises(GraphError, match=r"got ZeroDivisionError: .*Write it in NumPy style"):
        try_function("node `c`", lambda s: 1 // 0, sample(()))


def test_apply_shows_the_state_it_failed_on():
    with pytest.raises(
        MessageError, match=r"got AttributeError: no state field `u`.* for State\(instance=0, t=3\)"
    ):
        apply("node `c`", lambda s: s.u, State.of(t=3))


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (3, [3, 3]),
        (True, [True, True]),
        ([1, 2], [1, 2]),
        (np.int32(4), [4, 4]),
    ],
)
def test_column_takes_scalars_and_columns(value, want):
    assert column("here", value, 2).tolist() == want


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            0.5,
            "here: expected integers or truth values, got float64. States are integers: use `//` instead of `/`",
        ),
        (["a", "b"], "here: expected integers or truth values, got <U1"),
        ([1, 2, 3], r"here: expected a scalar or 2 values, one per message, got shape \(3,\)"),
        ([[1, 2]], r"got shape \(1, 2\)"),
    ],
)
def test_column_refuses(value, text):
    with pytest.raises(MessageError, match=text):
        column("here", value, 2)
