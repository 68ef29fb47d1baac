"""File formats, read with care: lines, archives, IDX."""
