"""A model as one function of a batch: rows of index spaces, laid out on the host, and a program over these rows."""
