"""Right numbers on CPUs: the flag that prevents XLA's wrong fusions, and the check whether the flag is needed.

Also how far numbers are apart (`differences`), and programs that run operation by operation in float64 (`double_precision`).
"""
