"""Side-by-side measurements: ours beside programs as their users would write them."""
