"""The static graph: nodes, typed wires, checks. No asyncio, no devices."""
