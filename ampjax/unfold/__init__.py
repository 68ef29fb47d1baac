"""The control flow of instances, evaluated ahead of time and written as integers.

Control never reads a payload, so everything that an instance will ever do follows from what is pumped for it. `Unfolding` evaluates it for many
instances at once and gives their `Programs`. It knows no device, no clock and no schedule.
"""
