"""The rules by which each combinator becomes nodes."""
