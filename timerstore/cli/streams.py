"""Standard input, output and error: open, and such that no text fails.

Threads:  the main one, around a command.
Holds:    (1) no file gets the number of one that is closed: standard error then drops what is
          written, standard input raises CommandError where it is read, and a command does not start
          without a standard output (`check_output`); (2) a character that the encoding of an
          answer does not have is escaped, a euro sign as its number; (3) bytes of standard input
          that are no text come as halves of surrogate pairs, which whoever takes the line refuses;
          (4) an answer that cannot be written is told as such, whoever writes it; what is said
          beside it is not worth an error; (5) who called `main` in a process of his own has his
          streams again.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from timerstore._engine.storage.descriptors import reserve_standard
from timerstore.cli.exits import CommandError

_ESCAPED, _AS_HALVES = "backslashreplace", "surrogateescape"


@contextmanager
def ready() -> Iterator[None]:
    """Have all three so."""
    closed = [fd for fd, one in enumerate((sys.stdin, sys.stdout, sys.stderr)) if _is_shut(one, fd)]
    reserve_standard()
    sys.stdin = _made(None if 0 in closed else sys.stdin, 0, "r", _AS_HALVES)
    own = sys.stdout, sys.stderr = (
        _made(None if 1 in closed else sys.stdout, 1, "w", _ESCAPED),
        _made(None if 2 in closed else sys.stderr, 2, "w", _ESCAPED),
    )
    sys.stdout, sys.stderr = _within(own[0], 1, _Answers), _within(own[1], 2, _Notes)
    try:
        yield
    finally:
        with suppress(OSError, CommandError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = own


@contextmanager
def answering() -> Iterator[None]:
    """The system's error of standard output is none of the store's."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(
            "the answer cannot be written",
            where="standard output",
            got=error.strerror,
            do="what was asked for may be done: look before it is asked for again",
        ) from error


def check_output() -> None:
    """CommandError where standard output is closed, before a command changes anything."""
    if _is_closed(sys.stdout):
        raise CommandError(
            "standard output is closed, so no answer can be written; nothing was done",
            where="standard output",
            wanted="a file, a pipe or a terminal",
            got="a closed descriptor",
            do="add > /dev/null to throw the answer away",
        )


def input_descriptor() -> int:
    """Give the descriptor of standard input; CommandError where that is closed."""
    if _is_closed(sys.stdin):
        sys.stdin.read()  # raises
    return sys.stdin.fileno()


def _is_closed(stream: Any) -> bool:
    return isinstance(getattr(getattr(stream, "buffer", None), "raw", None), _Closed)


def _is_shut(stream: Any, fd: int) -> bool:
    """Whether a stream was closed: Python has none where it found the descriptor so."""
    if stream is None or getattr(stream, "closed", False):
        return True
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):  # in memory
        return False
    try:
        os.fstat(number)
    except OSError:
        return bool(number == fd)
    return False


def _made(stream: Any, fd: int, mode: str, errors: str) -> Any:
    """Have it take any text; None: it is closed."""
    if stream is None and fd == 2:
        return open(fd, mode, errors=errors, closefd=False)
    if stream is None:
        raw = _Closed(is_input=mode == "r")
        kind: Any = io.BufferedReader if mode == "r" else io.BufferedWriter
        return io.TextIOWrapper(kind(raw), "utf-8", errors, write_through=True)
    if isinstance(stream, io.TextIOWrapper):  # else somebody's own, in memory
        stream.reconfigure(errors=errors)
    return stream


def _within(stream: Any, fd: int, kind: "type[_Answers | _Notes]") -> Any:
    """Write to the same descriptor in a way of its own; somebody's own stream is left as it is."""
    if type(stream) is not io.TextIOWrapper or not _is_at(stream, fd):
        return stream
    with suppress(OSError):
        stream.flush()
    return kind(fd, stream.encoding, is_unbuffered=stream.write_through)


def _is_at(stream: io.TextIOWrapper, fd: int) -> bool:
    try:
        return stream.fileno() == fd
    except (OSError, ValueError):  # in memory, or closed
        return False


class _Closed(io.RawIOBase):
    """Standard input or output that is closed."""

    def __init__(self, *, is_input: bool) -> None:
        self._is_input = is_input

    def readable(self) -> bool:
        """Whether it is read."""
        return self._is_input

    def writable(self) -> bool:
        """Whether it is written."""
        return not self._is_input

    def readinto(self, buffer: Any, /) -> int:
        """CommandError."""
        del buffer
        raise self._error()

    def write(self, data: Any, /) -> int:
        """CommandError."""
        del data
        raise self._error()

    def _error(self) -> CommandError:
        name = "input" if self._is_input else "output"
        return CommandError(
            f"standard {name} is closed",
            where=f"standard {name}",
            got="a closed descriptor",
            do="add < /dev/null to read nothing" if self._is_input else "add > /dev/null",
        )


class _Answers(io.TextIOWrapper):
    """Standard output."""

    def __init__(self, fd: int, encoding: str, *, is_unbuffered: bool) -> None:
        size = 0 if is_unbuffered else -1  # a raw file, as `python -u` has it
        raw = open(fd, "wb", buffering=size, closefd=False)  # noqa: SIM115 - as long as this is
        super().__init__(
            raw,
            encoding,
            _ESCAPED,
            "\n",
            line_buffering=raw.isatty(),
            write_through=is_unbuffered,
        )

    def write(self, text: str, /) -> int:
        """Write some of an answer; CommandError where the system does not."""
        with answering():
            return super().write(text)

    def flush(self) -> None:
        """Have all of it out; CommandError where it is not."""
        with answering():
            super().flush()


class _Notes(io.TextIOWrapper):
    """Standard error: what it does not take is not said, and the command goes on."""

    def __init__(self, fd: int, encoding: str, *, is_unbuffered: bool) -> None:
        del is_unbuffered  # always: nothing is kept that cannot be written
        raw: Any = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115 - as long as this is
        super().__init__(raw, encoding, _ESCAPED, "\n", write_through=True)

    def write(self, text: str, /) -> int:
        """Say something, where that can be."""
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Nothing is kept."""
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError:
            return
