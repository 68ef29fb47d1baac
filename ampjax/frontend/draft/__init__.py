"""The graph to be: index spaces and the values in them, pumps, and notes of nodes, built when all state fields are known."""
