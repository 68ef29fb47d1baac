"""Several processes, on one machine or many: their placement, their ends, and the messages between processes."""

from ampjax.cluster.hosts.host_context import HostContext
from ampjax.cluster.hosts.local_launcher import LocalLauncher
from ampjax.cluster.hosts.ray_launcher import RayLauncher
from ampjax.cluster.hosts.spawn_hosts import Host, HostOptions, Hosts, spawn
from ampjax.cluster.wire.channel import Channel, Window, wait_any
from ampjax.cluster.wire.memory_channel import memory_pair
from ampjax.cluster.wire.message import Message
from ampjax.cluster.wire.zmq_channel import Patience
from ampjax.cluster.wire.zmq_wire import Keys, Wire, new_keys

__all__ = [
    "Channel",
    "Host",
    "HostContext",
    "HostOptions",
    "Hosts",
    "Keys",
    "LocalLauncher",
    "Message",
    "Patience",
    "RayLauncher",
    "Window",
    "Wire",
    "memory_pair",
    "new_keys",
    "spawn",
    "wait_any",
]


def __dir__() -> list[str]:
    return __all__
