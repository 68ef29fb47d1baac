"""The papers' experiments: `python -m experiments NAME`."""
