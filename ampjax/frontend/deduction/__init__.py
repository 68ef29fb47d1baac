"""From a traced model to the graph to be: what is known when, index spaces, which equations become one node."""
