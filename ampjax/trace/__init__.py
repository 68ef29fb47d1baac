"""The records of a run, to be read later: traces, journals, recordings. Data only."""
