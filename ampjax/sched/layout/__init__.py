"""How the tables are laid out: the columns of each of them, and the lines that are free."""
