"""The sequence models of Parallax, trained as graphs on single sentences and by `get_runner` on padded batches."""
