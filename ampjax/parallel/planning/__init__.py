"""Plans where each variable is kept, what this costs, and how many partitions are best."""
