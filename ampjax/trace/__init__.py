"""What a run leaves to be read later: traces, journals, recordings. Data only."""
