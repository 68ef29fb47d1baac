"""Rules that turn each combinator into steps of a program over rows."""
