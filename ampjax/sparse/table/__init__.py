"""The sharded table, as its user and its client see it."""
