"""Programs of instances: kept for instances that come again, or growing while in flight."""
