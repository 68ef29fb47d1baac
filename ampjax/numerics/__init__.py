"""Right numbers on CPUs: the flag that keeps XLA from its wrong fusions, and the check that tells whether it is needed.

Also how far numbers are apart (`differences`), and programs that run operation by operation in float64 (`double_precision`).
"""
