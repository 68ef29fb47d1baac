"""Rows in eight bits: an element is a code of one byte, a row has a scale."""
