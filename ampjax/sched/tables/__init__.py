"""The tables that the loops work on, and room in them."""
