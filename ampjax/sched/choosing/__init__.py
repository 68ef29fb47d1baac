"""Chooses the queue that a worker takes next, by ampjax's policies and by those that users write."""
