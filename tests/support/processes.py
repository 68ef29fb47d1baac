"""What tests of processes ask."""

import os


def is_there(process):
    """Whether a process has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
