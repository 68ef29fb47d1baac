"""What becomes of a run when processes are killed at random moments: the driver's own (`driver`), or its hosts (`hosts`)."""
