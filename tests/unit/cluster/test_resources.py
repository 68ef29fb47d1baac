import jax
import pytest

from ampjax.cluster.hosts.resources import RemoteDevice, Resources, find_resources
from ampjax.errors import SettingsError


def test_no_file_means_all_local_devices_as_one_machine():
    resources = find_resources()
    assert resources.devices == tuple(jax.local_devices())
    assert resources.homes == (0, 0, 0, 0)
    assert resources.servers == (0,)


def test_a_file_names_machines(tmp_path):
    path = tmp_path / "resources.yaml"
    path.write_text(
        "machines:\n  - {host: a, devices: [2, 0], servers: 2}\n  - devices: [1]\n    servers: 0\n"
    )
    resources = find_resources(path)
    assert [device.id for device in resources.devices] == [2, 0, 1]
    assert resources.homes == (0, 0, 1)
    assert resources.servers == (0, 0)
    assert [machine.host for machine in resources.machines] == ["a", "machine-1"]
    assert resources.replicas_of(0) == [0, 1]
    assert find_resources(resources) is resources


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("machines: [", "expected YAML"),
        ("[" * 50_000, "expected YAML, got more than 8 brackets within each other"),
        (
            "a: &a [x, x]\nb: &b [*a, *a]\nmachines: [*b, *b]",
            "expected YAML, got an alias",
        ),
        ("machines: 2001-99-99", "expected YAML, got month must be in"),
        ("#" * (1 << 16) + "\n", "expected YAML, got more than 65536 bytes"),
        ("- 1", "a mapping with the one key `machines`, got list"),
        (
            "machines: []\nextra: 1",
            "the one key `machines`, got the keys \\['extra', 'machines'\\]",
        ),
        ("machines: 3", "`machines`: expected a list, got int"),
        ("machines: []", "at least one machine, got none"),
        ("machines: [{devices: [0], gpus: 3}]", "machine 0: expected `devices`"),
        ("machines: [{devices: 2}]", "a list of numbers, got 2"),
        ("machines: [{devices: [7]}]", "numbers from 0 to 3, this process's devices, got 7"),
        ("machines: [{devices: []}]", "at least one device, got none"),
        ("machines: [{devices: [0]}, {devices: [0]}]", "each device once"),
        (
            "machines: [{host: a, devices: [0]}, {host: a, devices: [1]}]",
            "each host once, got `a` twice",
        ),
        ("machines: [{devices: [0], servers: -1}]", "a number from 0 to 1000, got -1"),
        (
            "machines: [{devices: [0], servers: 1001}]",
            "a number from 0 to 1000, got 1001",
        ),  # before memory is asked for
        ("machines: [{devices: [0], servers: 0}]", "at least one server, got none"),
    ],
    ids=lambda text: text[:30],
)
def test_wrong_files(tmp_path, text, message):
    path = tmp_path / "resources.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        find_resources(path)


def test_machines_with_addresses_have_processes(tmp_path):
    path = tmp_path / "resources.yaml"
    path.write_text(
        "machines:\n  - {host: a, address: localhost, devices: [0, 1]}\n  - {address: 10.0.0.2, devices: [0], servers: 2}\n"
    )
    resources = find_resources(path)
    assert resources.has_processes and not find_resources().has_processes
    assert resources.devices == (
        RemoteDevice("a", 0),
        RemoteDevice("a", 1),
        RemoteDevice("machine-1", 0),
    )
    assert resources.homes == (0, 0, 1)
    assert resources.servers == (0, 1, 1)
    assert [machine.address for machine in resources.machines] == ["localhost", "10.0.0.2"]
    listed = [
        {"host": "a", "address": "localhost", "devices": [0, 1]},
        {"address": "10.0.0.2", "devices": [0], "servers": 2},
    ]
    assert find_resources({"machines": listed}) == resources


@pytest.mark.parametrize(
    ("machines", "message"),
    [
        (
            [{"address": "x", "devices": [0]}, {"devices": [1]}],
            "machine-1`, `address`: expected an address for all",
        ),
        (
            [{"devices": [1]}, {"address": "x", "devices": [0]}],
            "or for none, got one, other than the first",
        ),
        (
            [{"address": "", "devices": [0]}],
            "machine 0, `address`: expected a name or an address, got ''",
        ),
        ([{"address": 7, "devices": [0]}], "expected a name or an address, got 7"),
        (
            [{"address": "x", "devices": [-1]}],
            "machine 0, `devices`: expected numbers of at least 0, got -1",
        ),
        ([{"address": "x", "devices": ["gpu"]}], "expected numbers of at least 0, got 'gpu'"),
        (
            [{"address": "x", "devices": [0, 0]}],
            r"each device once, got `RemoteDevice\(host='machine-0', number=0\)` twice",
        ),
        ([{"host": "a", "address": "x", "devices": [0]}] * 2, "each host once, got `a` twice"),
        (
            [{"address": "x", "devices": []}],
            "machine `machine-0`: expected at least one device, got none",
        ),
        (
            [{"address": "x", "devices": [0], "gpus": 3}],
            "resource_info, machine 0: expected `devices`, and of",
        ),
        ([], "at least one machine, got none"),
    ],
    ids=str,
)
def test_wrong_machines_with_addresses(machines, message):
    with pytest.raises(SettingsError, match=message):
        find_resources({"machines": machines})


def test_what_is_no_resource_info():
    with pytest.raises(
        SettingsError,
        match="resource_info: expected a file's name, a mapping, Resources or None, got 3",
    ):
        find_resources(3)
    with pytest.raises(
        SettingsError,
        match="resource_info: expected a mapping with the one key `machines`, got the keys",
    ):
        find_resources({"a": 1})


def test_a_missing_file(tmp_path):
    with pytest.raises(SettingsError, match="a file that can be read, got No such file"):
        find_resources(tmp_path / "nowhere.yaml")


def test_resources_from_machines():
    assert Resources(find_resources().machines) == find_resources()
