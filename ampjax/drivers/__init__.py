"""Event loops that ask the scheduler for work: in real time, in virtual time, or as a recording says. Also what they share."""
