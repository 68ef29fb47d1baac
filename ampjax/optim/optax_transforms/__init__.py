"""How transforms of optax are made and called: below all that transforms gradients."""
