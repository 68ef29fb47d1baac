"""The server's side of tables: partitions of rows, and their updates."""
