"""The graph to be: index spaces with their values, pumps, and notes of nodes, built when all state fields are known."""
