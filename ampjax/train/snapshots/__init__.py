"""Snapshots of a fit, from which it goes on as if nothing had happened: when they are taken, and where a fit stands then."""
