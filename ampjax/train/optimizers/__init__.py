"""Which optimizer updates which nodes, and their states as users see them."""
