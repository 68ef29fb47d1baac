"""Snapshots of a fit, from which it can be resumed: when they are taken, and how far the fit had come."""
