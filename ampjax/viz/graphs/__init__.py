"""Pictures of graphs: the layout of nodes, and the flow between nodes."""
