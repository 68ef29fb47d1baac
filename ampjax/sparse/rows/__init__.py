"""What a server does with rows: it holds partitions and updates them."""
