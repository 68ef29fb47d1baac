"""Replicas and servers as processes: one worker a replica, on the machines of a resource file."""
