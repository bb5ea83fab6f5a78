"""Write results to standard output as text, JSON lines or tables.

A table fits the terminal's width. Into a pipe it is neither cut nor coloured.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from timerstore.cli.exits import ErrorReport
from timerstore.cli.streams import writing_result
from timerstore.cli.text import safe

_PIPE_WIDTH = 100_000


def emit(value: Any) -> None:
    """Write one JSON object on one line, and flush."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # the stream's own escapes would not be JSON
        text = json.dumps(value, default=str)
    say(text)


def say(text: str) -> None:
    """Write one line of the result, and flush."""
    with writing_result():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def raw(data: bytes) -> None:
    """Write bytes unchanged, and a newline."""
    with writing_result():
        sys.stdout.flush()
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()


def note(text: str) -> None:
    """Write a remark to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Write a table. Columns of only ints and None are aligned to the right."""
    rows = [list(row) for row in rows]
    made = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for k, name in enumerate(columns):
        numeric = bool(rows) and all(row[k] is None or isinstance(row[k], int) for row in rows)
        made.add_column(name, justify="right" if numeric else "left", header_style="bold")
    for row in rows:
        made.add_row(*(Text(_cell(value)) for value in row))
    on_terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if on_terminal else _PIPE_WIDTH, highlight=False)
    with writing_result():
        with console.capture() as captured:
            console.print(made)
        for line in captured.get().splitlines():
            sys.stdout.write(line.rstrip() + "\n")
        sys.stdout.flush()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else safe(str(value))


def emit_error(error: ErrorReport, *, as_json: bool) -> None:
    """Write an error to standard error."""
    if as_json:
        note(json.dumps(error.as_json()))
        return
    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    for k, line in enumerate(error.lines()):
        console.print(Text(safe(line), style="" if k else "bold red"))
