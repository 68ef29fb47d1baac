"""From a graph to a plan: stages, the consumers of each, and the worker that runs each."""
