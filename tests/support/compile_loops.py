"""Compiles the scheduler's loops and ends: run as a program beside test processes that start, each of which would compile them itself."""

from support.laws import Costs, Schedule, run_control

if __name__ == "__main__":
    run_control(0, Schedule())
    run_control(0, Schedule(costs=Costs(0)))
