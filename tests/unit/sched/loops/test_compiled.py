"""How loops are compiled: with options that some Numba may not know."""

import ast
from collections import Counter
from pathlib import Path

import pytest
from numba import njit
from numba.core import config
from numba.core.cpu import CPUTargetOptions

from ampjax.sched.layout import columns
from ampjax.sched.loops import compiled


def twice(x):
    return 2 * x


def test_this_numba_knows_all_options():
    assert compiled.OPTIONS["_nrt"] is False and compiled.INLINED["forceinline"]
    assert len(compiled.INNER) == 2 and len(compiled.ENTRY) == 1


def test_an_option_that_numba_refuses_is_left_out(monkeypatch):
    """As a Numba without the private `_nrt` would: it says so when a function is compiled."""
    (owner,) = (base for base in CPUTargetOptions.__mro__ if "_nrt" in vars(base))
    monkeypatch.delattr(owner, "_nrt")
    with pytest.raises(KeyError, match="_nrt"):
        njit(_nrt=False)(twice)(3)
    options = compiled.select_known(_nrt=False, no_cfunc_wrapper=True)
    assert options == {"no_cfunc_wrapper": True}
    assert njit(error_model="numpy", **options)(twice)(3) == 6


def test_no_two_columns_share_a_name():
    """One that is assigned twice would silently be another table's."""
    names = Counter(
        name.id
        for statement in ast.parse(Path(columns.__file__).read_text()).body
        if isinstance(statement, ast.Assign)
        for name in ast.walk(statement.targets[0])
        if isinstance(name, ast.Name)
    )
    assert len(names) > 100 and max(names.values()) == 1, names.most_common(3)


@pytest.mark.parametrize(
    "damage", [b"", b"no pickle", None], ids=["empty", "garbage", "module gone"]
)
def test_what_is_damaged_on_disk_is_compiled_anew(damage, tmp_path, monkeypatch):
    """None: an index that names a module which is not there, as that of an older version may."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert compiled.entry(twice)(3) == 6
    (index,) = tmp_path.rglob("*.nbi")
    assert compiled.DIGEST[:16] in index.name
    kept = index.read_bytes()
    index.write_bytes(
        kept.replace(b"numba.core.types", b"numba.gone.types") if damage is None else damage
    )
    again = compiled.entry(twice)
    assert again(3) == 6
    assert sum(again.stats.cache_misses.values()) == 1
    third = compiled.entry(twice)
    assert third(3) == 6
    assert sum(third.stats.cache_hits.values()) == 1
