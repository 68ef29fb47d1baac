"""The kinds of stages, on devices: for each a runner, which carries out the launches of one stage."""
