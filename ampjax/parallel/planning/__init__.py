"""What becomes of each variable, what it costs, and how many partitions are best."""
