"""Messages between hosts, and the channels that carry them: in memory or over ZeroMQ."""
