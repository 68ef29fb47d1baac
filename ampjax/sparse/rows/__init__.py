"""The server's side of tables: it holds partitions of rows and updates them."""
