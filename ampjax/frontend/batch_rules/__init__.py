"""How each combinator becomes steps of a program over rows."""
