"""The instances of a data set as columns: what a spec says of them, and their numbers on the host."""
