"""What a pass keeps: rows of payloads and gradients, sums of losses, gradients of rows of tables."""
