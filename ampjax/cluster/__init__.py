"""Several processes, on one machine or many: their placement, their ends, and the messages between processes."""

from typing import TYPE_CHECKING

from ampjax.cluster.hosts.ray_launcher import RayLauncher
from ampjax.moved_names import finder

__all__ = [
    "RayLauncher",
]

_MOVED = {
    "Channel": "ampjax.cluster.wire.channel.Channel",
    "Host": "ampjax.cluster.hosts.spawn_hosts.Host",
    "HostContext": "ampjax.cluster.hosts.host_context.HostContext",
    "HostOptions": "ampjax.cluster.hosts.spawn_hosts.HostOptions",
    "Hosts": "ampjax.cluster.hosts.spawn_hosts.SpawnedHosts",
    "Keys": "ampjax.cluster.wire.zmq_wire.Keys",
    "LocalLauncher": "ampjax.cluster.hosts.local_launcher.LocalLauncher",
    "Message": "ampjax.cluster.wire.message.Message",
    "Patience": "ampjax.cluster.wire.zmq_channel.Patience",
    "Window": "ampjax.cluster.wire.channel.Window",
    "Wire": "ampjax.cluster.wire.zmq_wire.ZmqWire",
    "memory_pair": "ampjax.cluster.wire.memory_channel.memory_pair",
    "new_keys": "ampjax.cluster.wire.zmq_wire.new_keys",
    "spawn": "ampjax.cluster.hosts.spawn_hosts.spawn",
    "wait_any": "ampjax.cluster.wire.channel.wait_any",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
