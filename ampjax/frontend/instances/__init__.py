"""The instances of a data set: the spec, and columns of numbers on the host."""
