"""Bars on standard error, where that is a terminal; nothing where it is not."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from timerstore.cli.stopping import Stop

Tell = Callable[[int, int], None]
"""Told how much is done, and of how much (0: nobody knows)."""


@contextmanager
def progress(what: str, *, of_bytes: bool = True, stop: Stop | None = None) -> Iterator[Tell]:
    """Show how far long work is; with `stop`, each step is a place where a signal ends it."""
    amounts: list[ProgressColumn] = (
        [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        if of_bytes
        else [MofNCompleteColumn()]
    )
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        *amounts,
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bars:
        task = bars.add_task(what, total=None)

        def tell(done: int, total: int) -> None:
            if stop is not None:
                stop.check()
            bars.update(task, completed=done, total=total or None)

        yield tell
