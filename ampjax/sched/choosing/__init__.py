"""Which queue a worker takes next, by our policies and by those that users write."""
