"""The operations of nodes: control nodes, which move states, and payload nodes, which move floats. `op_classes` has a guide to adding one."""
