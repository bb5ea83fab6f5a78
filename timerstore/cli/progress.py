"""Progress bars on standard error. They are shown only on a terminal."""

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

OnProgress = Callable[[int, int], None]
"""Called with the amount done and the total (0: unknown)."""


@contextmanager
def progress(what: str, *, of_bytes: bool = True, stop: Stop | None = None) -> Iterator[OnProgress]:
    """Show the progress of long work. With `stop`, each call raises Stopped after a signal."""
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

        def on_progress(done: int, total: int) -> None:
            if stop is not None:
                stop.check()
            bars.update(task, completed=done, total=total or None)

        yield on_progress
