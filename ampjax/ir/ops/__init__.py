"""What nodes do: control nodes, which move states, and payload nodes, which move floats. `op_classes` says how to add one."""
