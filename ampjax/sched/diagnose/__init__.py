"""Diagnosis of a scheduler: an instance's story, missing inputs, and whether its tables are consistent.

All of it is read from a `Snapshot`, and none of it changes anything.
"""
