"""The tables that the loops work on, and the room in the tables."""
