"""Plans the home of each variable, the costs, and the number of partitions."""
