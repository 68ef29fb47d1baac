"""The choice how several processes of one machine share a table."""

from __future__ import annotations

from dataclasses import dataclass

from ampjax.errors import SettingsError
from ampjax.utils.setting_checks import at_least, one_of

WRITERS = ("partitioned", "lock_free")


@dataclass(frozen=True)
class TableSharing:
    """The way in which processes of one machine share a table in mapped files (`folder`), without a server.

    All processes make the table by the same call. The first one writes the rows, the others map the files that are there. Any process reads any
    row; nobody waits for anybody. Rows and their optimizer state stay in the files when processes end, however they end.

    Args:
      writers: Who may write which rows. `partitioned`: each process has partitions of its own, partition p belongs to process `p % n_processes`,
        and updates of other rows are refused. So no update is lost. `lock_free`: every process updates any row (Hogwild, Recht et al. 2011): if
        two update one row at the same time, one of the two updates may be lost, or the row be of both.
      process: This process's number, in `[0, n_processes)`; None if it only reads.
      n_processes: How many processes there may be that write.

    Raises:
      SettingsError: If a setting is out of its range.

    >>> TableSharing("partitioned", process=1, n_processes=2).owned(5)
    [1, 3]
    """

    writers: str = "partitioned"
    process: int | None = 0
    n_processes: int = 1

    def __post_init__(self) -> None:
        one_of("writers", self.writers, WRITERS)
        at_least("n_processes", self.n_processes, 1)
        if self.process is None:
            return
        at_least("process", self.process, 0)
        if self.process >= self.n_processes:
            raise SettingsError(
                "setting `process`",
                f"a number below `n_processes`, {self.n_processes}",
                f"{self.process}",
                "Processes are numbered from 0.",
            )

    @property
    def is_partitioned(self) -> bool:
        """Tells whether each row has one writer."""
        return self.writers == "partitioned"

    def owned(self, n_partitions: int) -> list[int]:
        """The partitions whose rows this process may write.

        Args:
          n_partitions: The table's number of partitions.
        """
        if self.process is None:
            return []
        if not self.is_partitioned:
            return list(range(n_partitions))
        return list(range(self.process, n_partitions, self.n_processes))
