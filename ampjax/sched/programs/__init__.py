"""Programs of instances: kept for those that come again, or growing while they are in flight."""
