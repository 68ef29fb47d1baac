"""Arrays of a pass: rows of payloads and gradients, sums of losses, gradients of rows of tables."""
