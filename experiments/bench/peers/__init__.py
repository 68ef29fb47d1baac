"""The other programs, each written as its users would write it."""
