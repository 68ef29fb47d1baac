"""A runner's checkpoints: their files, those that continue others, and when they are written."""
