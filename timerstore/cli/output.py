"""Write results to standard output as text, JSON lines or tables.

Tables and paragraphs fit the terminal's width. Into a pipe they are neither cut nor coloured.
"""

import json
import shutil
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
_IN_ASCII = str.maketrans("·◆∙•●", ".@ooO")


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


def table(names: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Write a table. Columns of only ints and None are aligned to the right."""
    rows = [list(row) for row in rows]
    made = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for k, name in enumerate(names):
        numeric = bool(rows) and all(row[k] is None or isinstance(row[k], int) for row in rows)
        made.add_column(name, justify="right" if numeric else "left", header_style="bold")
    for row in rows:
        made.add_row(*(Text(_cell(value)) for value in row))
    console = Console(file=sys.stdout, width=columns(), highlight=False)
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


def columns() -> int:
    """Return the width of the output: that of the terminal, or no limit into a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def paragraph(text: str | Text, *, head: str | Text = "") -> None:
    """Write text, wrapped at words. `head` stands before its first line, blanks before others.

    If the stream's encoding lacks a character, one of ASCII that looks like it is written.
    """
    # Without a height, rich takes a terminal without colour for 80 columns.
    console = Console(file=sys.stdout, width=columns(), height=24, highlight=False)
    begin = head if isinstance(head, Text) else Text(head)
    with console.capture() as captured:  # rich ends the process on a broken pipe
        width = max(1, console.width - len(begin))
        for line in (Text(text) if isinstance(text, str) else text).wrap(console, width):
            line.rstrip()
            console.print(begin + line)
            begin = Text(" " * len(begin))
    shown = captured.get().removesuffix("\n")
    try:
        shown.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        shown = shown.translate(_IN_ASCII)
    say(shown)


def emit_error(error: ErrorReport, *, as_json: bool) -> None:
    """Write an error to standard error."""
    if as_json:
        note(json.dumps(error.as_json()))
        return
    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    for k, line in enumerate(error.lines()):
        console.print(Text(safe(line), style="" if k else "bold red"))
