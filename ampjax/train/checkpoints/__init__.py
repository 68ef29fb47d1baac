"""Checkpoints of a trainer: their files, the times of a snapshot, and the position of training."""
