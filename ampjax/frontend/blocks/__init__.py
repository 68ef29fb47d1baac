"""Pairs of elements of one row as blocks: padded, so that products of both sides are matrix products and no pair is read."""
