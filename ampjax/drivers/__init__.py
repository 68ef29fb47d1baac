"""Who asks the scheduler when: in an event loop, in virtual time, or as a recording tells."""
