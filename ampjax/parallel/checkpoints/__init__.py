"""A runner's checkpoints: files, chains of checkpoints, and the times of saves."""
