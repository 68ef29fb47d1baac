"""The choice of the queue that a worker takes next, by policies of ampjax and of users."""
