"""Prepare standard input, output and error for a command, and restore them afterwards.

Thread safety: runs on the main thread, around a command.
Invariants:
    1. A file that a command opens never gets the descriptor of a closed standard stream. If
       standard error is closed, messages are dropped. If standard input is closed, reading it
       raises CommandError. If standard output is closed, no command starts (`check_output`).
    2. A character that the encoding of an output stream lacks is escaped by its number.
    3. Bytes of standard input that are not UTF-8 become surrogates. The code that uses the line
       rejects them.
    4. A result that cannot be written raises CommandError. A message on standard error that cannot
       be written is dropped.
    5. A program that calls `main` gets its own stream objects back.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from timerstore._engine.storage.file import reserve_standard
from timerstore.cli.exits import CommandError

_ESCAPED, _AS_SURROGATES = "backslashreplace", "surrogateescape"


@contextmanager
def ready() -> Iterator[None]:
    """Prepare the three streams for a command; restore the caller's afterwards."""
    closed = [
        fd for fd, one in enumerate((sys.stdin, sys.stdout, sys.stderr)) if _was_closed(one, fd)
    ]
    reserve_standard()
    sys.stdin = _accepting_any_text(None if 0 in closed else sys.stdin, 0, "r", _AS_SURROGATES)
    own = sys.stdout, sys.stderr = (
        _accepting_any_text(None if 1 in closed else sys.stdout, 1, "w", _ESCAPED),
        _accepting_any_text(None if 2 in closed else sys.stderr, 2, "w", _ESCAPED),
    )
    sys.stdout, sys.stderr = _wrapped(own[0], 1, _Results), _wrapped(own[1], 2, _Messages)
    try:
        yield
    finally:
        with suppress(OSError, CommandError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = own


@contextmanager
def writing_result() -> Iterator[None]:
    """Turn an error of writing standard output into CommandError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(
            "the result cannot be written",
            where="standard output",
            got=error.strerror,
            do="the command may have taken effect; check before you repeat it",
        ) from error


def check_output() -> None:
    """Raise CommandError if standard output is closed, before a command changes anything."""
    if _is_closed(sys.stdout):
        raise CommandError(
            "standard output is closed, so no result can be written; nothing was done",
            where="standard output",
            wanted="a file, a pipe or a terminal",
            got="a closed descriptor",
            do="add > /dev/null to discard the result",
        )


def input_descriptor() -> int:
    """Return the descriptor of standard input; raise CommandError if it is closed."""
    if _is_closed(sys.stdin):
        sys.stdin.read()  # raises
    return sys.stdin.fileno()


def _is_closed(stream: Any) -> bool:
    return isinstance(getattr(getattr(stream, "buffer", None), "raw", None), _Closed)


def _was_closed(stream: Any, fd: int) -> bool:
    """Return whether a stream was closed. Python has no stream for a closed descriptor."""
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


def _accepting_any_text(stream: Any, fd: int, mode: str, errors: str) -> Any:
    """Return a stream that accepts any text; None stands for a closed stream."""
    if stream is None and fd == 2:
        return open(fd, mode, errors=errors, closefd=False)
    if stream is None:
        raw = _Closed(is_input=mode == "r")
        kind: Any = io.BufferedReader if mode == "r" else io.BufferedWriter
        return io.TextIOWrapper(kind(raw), "utf-8", errors, write_through=True)
    if isinstance(stream, io.TextIOWrapper):  # not a stream in memory
        stream.reconfigure(errors=errors)
    return stream


def _wrapped(stream: Any, fd: int, kind: "type[_Results | _Messages]") -> Any:
    """Wrap the descriptor of a stream in `kind`; return any other stream unchanged."""
    if type(stream) is not io.TextIOWrapper or not _has_descriptor(stream, fd):
        return stream
    with suppress(OSError):
        stream.flush()
    return kind(fd, stream.encoding, is_unbuffered=stream.write_through)


def _has_descriptor(stream: io.TextIOWrapper, fd: int) -> bool:
    try:
        return stream.fileno() == fd
    except (OSError, ValueError):  # in memory, or closed
        return False


class _Closed(io.RawIOBase):
    """A closed standard input or output, whose use raises CommandError."""

    def __init__(self, *, is_input: bool) -> None:
        self._is_input = is_input

    def readable(self) -> bool:
        """Return whether this stands for standard input."""
        return self._is_input

    def writable(self) -> bool:
        """Return whether this stands for standard output."""
        return not self._is_input

    def readinto(self, buffer: Any, /) -> int:
        """Raise CommandError."""
        del buffer
        raise self._error()

    def write(self, data: Any, /) -> int:
        """Raise CommandError."""
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


class _Results(io.TextIOWrapper):
    """Standard output, which raises CommandError if it cannot be written."""

    def __init__(self, fd: int, encoding: str, *, is_unbuffered: bool) -> None:
        size = 0 if is_unbuffered else -1  # a raw file, as with `python -u`
        raw = open(fd, "wb", buffering=size, closefd=False)  # noqa: SIM115 - closed with this
        super().__init__(
            raw,
            encoding,
            _ESCAPED,
            "\n",
            line_buffering=raw.isatty(),
            write_through=is_unbuffered,
        )

    def write(self, text: str, /) -> int:
        """Write text; raise CommandError if the system rejects it."""
        with writing_result():
            return super().write(text)

    def flush(self) -> None:
        """Flush; raise CommandError if the system rejects the data."""
        with writing_result():
            super().flush()


class _Messages(io.TextIOWrapper):
    """Standard error, which drops text that cannot be written."""

    def __init__(self, fd: int, encoding: str, *, is_unbuffered: bool) -> None:
        del is_unbuffered  # never buffered, so that a failed write leaves nothing behind
        raw: Any = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115 - closed with this
        super().__init__(raw, encoding, _ESCAPED, "\n", write_through=True)

    def write(self, text: str, /) -> int:
        """Write text, or drop it."""
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Flush, or drop the text."""
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError:
            return
