"""From a graph to a plan: stages, who consumes what, and which worker runs what."""
