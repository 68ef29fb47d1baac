"""Starts hosts, as threads or as processes, and makes the executor of their driver."""
