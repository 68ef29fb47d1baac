"""Snapshots of a fit, from which a fit can be resumed: their times, and the position of the fit in each."""
