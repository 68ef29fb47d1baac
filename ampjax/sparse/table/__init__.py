"""The sharded table, for its user and its client."""
