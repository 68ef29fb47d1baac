"""Event loops that ask the scheduler for work, in real time, in virtual time, or by a recording; and the parts that drivers share."""
