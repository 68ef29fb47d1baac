"""Devices: collectives between replicas, and how much memory there is."""
