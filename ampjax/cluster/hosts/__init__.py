"""Hosts: where they are placed, how they are started, watched and ended."""
