import pytest

from ampjax.errors import SettingsError
from ampjax.parallel.config.config import Checkpoints, ParallaxConfig, SampleTimes
from ampjax.parallel.config.partitioner import Partitioner, group_variables
from ampjax.parallel.homes.placement import place_variables
from ampjax.sparse.rows.partition_layout import PartitionLayout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run_option": "HYBRID"}, "setting `run_option`: expected one of"),
        ({"average_dense": "median"}, "setting `average_dense`: expected one of"),
        ({"sync": 1}, "setting `sync`: expected a bool"),
        ({"sync": False, "run_option": "ar"}, "True where run_option is `ar`"),
        ({"max_staleness": -1}, "an integer of at least 0, got -1"),
        ({"partitions": 0}, "an integer of at least 1, got 0"),
        ({"alpha_threshold": 0.0}, "a number above 0"),
        ({"sample": 100}, "setting `sample`: expected a SampleTimes"),
        ({"checkpoint": "folder"}, "setting `checkpoint`: expected a Checkpoints or None"),
        ({"wire_dtype": "float16"}, "setting `wire_dtype`"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(SettingsError, match=message):
        ParallaxConfig(**options)


def test_wrong_parts_of_settings():
    with pytest.raises(SettingsError, match="fewer than `iterations`, 5, got 5"):
        SampleTimes(iterations=5, discarded=5)
    with pytest.raises(SettingsError, match="at least 1, got 0"):
        Checkpoints("folder", every_steps=0)
    assert ParallaxConfig(sync=False).dense_at_servers


def test_partitioners_group_variables():
    rows = {"enc/emb": 100, "dec/emb": 50, "softmax/rows": 30}
    parts = [
        Partitioner("enc/emb,dec/*", min_partitions=2),
        Partitioner("softmax", max_partitions=4),
    ]
    groups = group_variables(parts, rows, [*rows, "w"])
    assert [(g.label, g.paths, g.low, g.high) for g in groups] == [
        ("enc/emb,dec/*", ("enc/emb", "dec/emb"), 2, 50),
        ("softmax", ("softmax/rows",), 1, 4),
    ]
    assert [g.label for g in group_variables([], rows, list(rows))] == ["others"]
    assert group_variables([Partitioner("w")], {}, ["w"]) == []


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Partitioner("embed")], "expected a name in one of"),
        (
            [Partitioner("emb"), Partitioner("enc")],
            "variable `enc/emb`: expected one partitioner at most",
        ),
        ([Partitioner("emb", min_partitions=11)], "at most 10, the rows of `enc/emb`"),
    ],
)
def test_wrong_partitioners(parts, message):
    with pytest.raises(SettingsError, match=message):
        group_variables(parts, {"enc/emb": 10}, ["enc/emb"])
    with pytest.raises(SettingsError, match="names of a leaf's path"):
        Partitioner("")


def test_placement_is_even_by_size():
    sizes = {f"v{i}": (100, (i * 37) % 101 + 1) for i in range(10)} | {"dense": (1, 7000)}
    partitions = {f"v{i}": i + 1 for i in range(10)}
    servers = place_variables(sizes, partitions, 3)
    assert {path: len(own) for path, own in servers.items()} == partitions | {"dense": 1}
    loads = [0, 0, 0]
    for path, own in servers.items():
        for part, server in enumerate(own):
            loads[server] += PartitionLayout(sizes[path][0], len(own)).size(part) * sizes[path][1]
    assert max(loads) - min(loads) <= 7000
