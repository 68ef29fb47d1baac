"""Models of the papers as graphs that are built node by node, to compare `experiments.models` with: what `amp.compile` is measured and tested against."""
