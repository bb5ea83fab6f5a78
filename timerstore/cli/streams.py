"""Standard input, output and error: open, and such that no text fails.

Threads:  the main one, around a command.
Holds:    (1) one that is closed is as /dev/null, so that no file gets its number and nothing that
          is said raises; (2) a character that the encoding of an answer does not have is escaped,
          a euro sign as its number; (3) bytes of standard input that are no text come as halves of
          surrogate pairs, which whoever takes the line refuses; (4) an answer that cannot be
          written is told as such, whoever writes it; what is said beside it is not worth an error;
          (5) who called `main` in a process of his own has his streams again.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from timerstore.cli.exits import CommandError
from timerstore.files.descriptors import keep_standard

_ESCAPED, _AS_HALVES = "backslashreplace", "surrogateescape"


@contextmanager
def ready() -> Iterator[None]:
    """Have all three so."""
    keep_standard()
    sys.stdin = _made(sys.stdin, 0, "r", _AS_HALVES)
    own = sys.stdout, sys.stderr = (
        _made(sys.stdout, 1, "w", _ESCAPED),
        _made(sys.stderr, 2, "w", _ESCAPED),
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


def _made(stream: Any, fd: int, mode: str, errors: str) -> Any:
    """Have it take any text; Python has none where it found the descriptor closed."""
    if stream is None:
        return open(fd, mode, errors=errors, closefd=False)
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
