"""Pictures of graphs: how nodes are laid out, and what flows between them."""
