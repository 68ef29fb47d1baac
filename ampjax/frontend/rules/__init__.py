"""How each combinator becomes nodes."""
