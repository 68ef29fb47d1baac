"""Hosts: placing, starting, watching and ending processes."""
