"""The layout of the scheduler's tables: columns, and free lines."""
