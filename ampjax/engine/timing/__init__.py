"""Times of launches on their devices, of which only some are waited for."""
