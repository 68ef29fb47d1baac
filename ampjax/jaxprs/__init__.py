"""Programs in JAX's own form: followed, cut and taken apart."""
