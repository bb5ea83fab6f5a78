"""Exit codes, and an error as it is told: what, where, wanted, got, and what to do.

Holds:    the codes keep their meaning; TABLE is what the guide and `--help` show.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from timerstore._engine.storage.os_errors import FULL
from timerstore.errors import (
    BusyError,
    CorruptError,
    FailedError,
    FlowControlError,
    FlushTimeoutError,
    FormatVersionError,
    FullError,
    LeaseLostError,
    LockedError,
    NotPendingError,
    TimerStoreError,
)


class Exit(IntEnum):
    """How a command ended."""

    FINE = 0
    NOT_SO = 1
    ERROR = 2
    LOCKED = 3
    LATER = 4
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


TABLE: Mapping[Exit, str] = MappingProxyType(
    {
        Exit.FINE: "done",
        Exit.NOT_SO: "damage was found, or the item does not exist or is no longer pending",
        Exit.ERROR: "an invalid argument, a file error, or output that cannot be written",
        Exit.LOCKED: "another process has the store open; the error shows its process id",
        Exit.LATER: "rejected for now: a full disk, flow control, another export; try again",
        Exit.INTERRUPTED: "Ctrl-C",
        Exit.READER_GONE: "the reader of the output is gone (a broken pipe)",
        Exit.TERMINATED: "SIGTERM",
    }
)

READERS = "ls, count, get, follow, every, histogram, top, serve, verify, dump, export"
"""Commands that read a store beside the process that has it open; of `every` its list."""


class CommandError(Exception):
    """What a command itself has to complain about."""

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        wanted: object = None,
        got: object = None,
        do: str = "",
        code: Exit = Exit.ERROR,
    ) -> None:
        super().__init__(what)
        self.told = Told(what, _text(where), _text(wanted), _text(got), do, code, "CommandError")


@dataclass(frozen=True, slots=True)
class Told:
    """An error, ready to be shown."""

    what: str
    where: str
    wanted: str
    got: str
    do: str
    code: Exit
    kind: str

    def lines(self) -> list[str]:
        """Give it as text."""
        parts = [("where", self.where), ("wanted", self.wanted), ("got", self.got), ("do", self.do)]
        return [f"error: {self.what}", *(f"  {name:6} {text}" for name, text in parts if text)]

    def as_json(self) -> dict[str, object]:
        """Give it as the object that `--json` writes to standard error."""
        parts = {"where": self.where, "wanted": self.wanted, "got": self.got, "do": self.do}
        return {
            "error": self.kind,
            "what": self.what,
            **{name: text for name, text in parts.items() if text},
            "exit": int(self.code),
        }


_CODES: tuple[tuple[type[Exception], Exit], ...] = (
    (LockedError, Exit.LOCKED),
    (FullError, Exit.LATER),
    (BusyError, Exit.LATER),
    (FlushTimeoutError, Exit.LATER),
    (LeaseLostError, Exit.NOT_SO),
    (NotPendingError, Exit.NOT_SO),
    (FormatVersionError, Exit.ERROR),
    (CorruptError, Exit.NOT_SO),
)

_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (LockedError, f"ask that process, or stop it first; beside it run: {READERS}"),
    (FullError, "make space and try again; nothing that was acknowledged is lost"),
    (FlowControlError, "try again when some of that slot are delivered or cancelled"),
    (BusyError, "try again in a while"),
    (FlushTimeoutError, "try again, with the same message id"),
    (FormatVersionError, "a newer timerstore wrote it: use that one"),
    (
        CorruptError,
        (
            "`timerstore verify PATH` names all that is damaged, `timerstore repair PATH NEW` "
            "saves what reads"
        ),
    ),
    (FailedError, "try again: opening reads what is on the disk; see the disk's own log"),
    (FileNotFoundError, "look at the path"),
    (PermissionError, "run it as the user whose files these are"),
)


_STAYS = {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EROFS, errno.ENAMETOOLONG}
"""Of what the system said: what is so again when it is tried again."""


def _advice(error: BaseException) -> str:
    """What to do; of a FailedError that stays, what its cause advises."""
    cause = error.__cause__
    if isinstance(error, FailedError) and isinstance(cause, OSError) and cause.errno in _STAYS:
        error = cause
    return next((text for kind, text in _ADVICE if isinstance(error, kind)), "")


def told(error: Exception) -> Told:
    """Say an error that a command ended with."""
    if isinstance(error, CommandError):
        return error.told
    code = next((code for kind, code in _CODES if isinstance(error, kind)), Exit.ERROR)
    do = _advice(error)
    kind = type(error).__name__
    if isinstance(error, TimerStoreError):
        parts = _text(error.where), _text(error.wanted), _text(error.got)
        return Told(_without(str(error), *parts), *parts, do, code, kind)
    if isinstance(error, OSError):
        names = " -> ".join(str(one) for one in (error.filename, error.filename2) if one)
        if error.errno in FULL:  # of a file that is no store's, as one that is exported to
            code, do = Exit.LATER, "make space and try again"
        return Told(error.strerror or str(error), names, "", "", do, code, kind)
    if isinstance(error, ImportError):
        return Told(str(error) or kind, "", "", "", do, code, kind)
    do = "report it as a bug, with what `timerstore --debug ...` prints"
    return Told(f"unexpected error: {error!r}", "", "", "", do, code, kind)


def _without(text: str, where: str, wanted: str, got: str) -> str:
    """The error's text without what is told beside it; a shard may have been named in front."""
    for word, part in (("got", got), ("wanted", wanted), ("at", where)):
        text = text.removesuffix(f"; {word} {part}") if part else text
    return text


def _text(value: object) -> str:
    return "" if value is None else str(value)
