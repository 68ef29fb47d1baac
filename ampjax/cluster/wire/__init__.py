"""Messages between hosts, and the channels that carry messages: in memory or over ZeroMQ."""
