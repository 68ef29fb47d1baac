"""The figures of the results page: measured by one command, at one commit, and written into the documentation from its records."""
