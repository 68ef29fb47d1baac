"""Every error that ampjax raises on purpose, each in four parts: where, what was expected, what came, what to do.

A caller's mistake is a `ValueError`; a failure at run time is a `RuntimeError`. This module imports nothing from the others.
"""

from __future__ import annotations


class AmpError(Exception):
    """The common root of ampjax's errors.

    Args:
      where: The place, in the user's words: a node and port, a setting, a file and line.
      expected: What would have been right.
      got: What came instead.
      fix: One sentence that says what to do.
    """

    def __init__(
        self,
        where: str,
        expected: str,
        got: str,
        fix: str = "",
    ):
        self.where = where
        self.expected = expected
        self.got = got
        self.fix = fix
        super().__init__(f"{where}: expected {expected}, got {got}." + (f" {fix}" if fix else ""))

    def __reduce__(self):
        return type(self), (self.where, self.expected, self.got, self.fix)


class GraphError(AmpError, ValueError):
    """A mistake in the static graph: a shape, a state field, a port, a loop, an inverse."""


class MessageError(AmpError, ValueError):
    """A message that does not fit: a payload, a state, a duplicate, a state function's result."""


class SettingsError(AmpError, ValueError):
    """A setting that is out of its range."""


class SettingsWarning(UserWarning):
    """A setting that does something else than its user may think, in four parts like an error; the run goes on."""


class DataError(AmpError, ValueError):
    """A data file or data set that is missing, damaged or of another format."""


class ParameterError(AmpError, ValueError):
    """Parameters of the wrong structure or shape, or with values that are not finite."""


class TableError(AmpError, ValueError):
    """A mistake about a sparse table: row ids, rows, files, or an optimizer that does not work row by row."""


class EquivalenceError(AmpError, ValueError):
    """A loss with another value when a batch is divided among replicas, or random keys that all replicas share."""


class EquivalenceWarning(UserWarning):
    """The warning in place of an `EquivalenceError`, if the setting is to warn."""


class IdWarning(UserWarning):
    """An id that is outside of its table, so that another row is read than was meant, as JAX does; names id, leaf and table."""


class ServerError(AmpError, RuntimeError):
    """A server process that has ended, was closed, or could not carry out a request."""


class WireError(AmpError, ValueError):
    """A message between processes that can't be sent, or received frames that are not a valid message."""


class HostError(AmpError, RuntimeError):
    """A host that can't be started, or whose program has failed."""


class HostDiedError(HostError):
    """A host whose process has ended, so that its parameters and payloads are lost."""


class HostUnreachableError(HostError):
    """A host that gives no sign of life: it hangs, or the network is interrupted. Its process may still exist."""


class LimitError(AmpError, RuntimeError):
    """A single instance that does not fit into the memory limit."""


class DeadlockError(AmpError, RuntimeError):
    """Messages that wait for others that never come; lists which nodes wait for what."""


class ReplayError(AmpError, RuntimeError):
    """A recording that can't be replayed: it is damaged, is of another run, or a decision differs; names the first such decision."""


class NumericsError(AmpError, RuntimeError):
    """Kernels that compute wrong numbers in this process."""


class NumericsWarning(RuntimeWarning):
    """The warning in place of a `NumericsError`, also in four parts: training continues, but its numbers can't be trusted."""


class SameNumbersWarning(UserWarning):
    """The warning of random numbers that all examples share, since the model draws them with a key that is none of theirs."""


class TuningWarning(UserWarning):
    """A target that no trial of `amp.tune` has reached, in four parts like an error; the result has the settings that came closest."""


class InvariantError(AmpError, RuntimeError):
    """A bug in ampjax: a law of the scheduler was broken. Contains the message's story."""
