"""A vocabulary that grows: which row of a table each id has, and which ids have none."""
