"""From a traced model to notes of nodes: what is known when, which equations become one node."""
