"""Exit codes, and the report of an error: what, where, wanted, got, and what to do.

Exit codes are stable. `--help` and the documentation show `TABLE`.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from timerstore._engine.storage.directory import COMPLETE
from timerstore._engine.storage.file import FULL
from timerstore.errors import (
    AccessError,
    BucketError,
    BusyError,
    ConflictError,
    ConnectionLostError,
    CorruptError,
    FailedError,
    FlowControlError,
    FormatVersionError,
    FullError,
    LeaseLostError,
    LockedError,
    NotPendingError,
    TimerStoreError,
    UnavailableError,
    page_of,
)


class Exit(IntEnum):
    """The exit code of a command."""

    FINE = 0
    NOT_SO = 1
    ERROR = 2
    LOCKED = 3
    LATER = 4
    FAILED = 5
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


TABLE: Mapping[Exit, str] = MappingProxyType(
    {
        Exit.FINE: "done",
        Exit.NOT_SO: "a check found a problem, or the item does not exist or is no longer pending",
        Exit.ERROR: "an invalid argument, a file error, or output that cannot be written",
        Exit.LOCKED: "another process has the store open; the error shows its process id",
        Exit.LATER: "rejected for now: a full disk, flow control, another export; try again",
        Exit.FAILED: "`serve`: the store has failed, and is closed; the next start recovers it",
        Exit.INTERRUPTED: "Ctrl-C; `serve` ends with 0",
        Exit.READER_GONE: "the reader of the output is gone (a broken pipe)",
        Exit.TERMINATED: "SIGTERM; `serve` ends with 0",
    }
)

INSTALL = "pip install '.[cli]' in a checkout"

READERS = "ls, count, get, follow, every, histogram, top, serve, doctor, verify, dump, export"
"""Commands that work while another process has the store open (`every`: only its list)."""


class CommandError(Exception):
    """An error that a command raises itself."""

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
        self.report = ErrorReport(
            what, _text(where), _text(wanted), _text(got), do, code, "CommandError"
        )


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error as the command line shows it."""

    what: str
    where: str
    wanted: str
    got: str
    do: str
    code: Exit
    kind: str
    see: str = ""

    def lines(self) -> list[str]:
        """Return the lines of the text form."""
        parts = ((name, text) for name, text in self._parts() if text)
        return [f"error: {self.what}", *(f"  {name:6} {text}" for name, text in parts)]

    def as_json(self) -> dict[str, object]:
        """Return the object that `--json` writes to standard error."""
        return {
            "error": self.kind,
            "what": self.what,
            **{name: text for name, text in self._parts() if text},
            "exit": int(self.code),
        }

    def _parts(self) -> tuple[tuple[str, str], ...]:
        return (
            ("where", self.where),
            ("wanted", self.wanted),
            ("got", self.got),
            ("do", self.do),
            ("see", self.see),
        )


_CODES: tuple[tuple[type[Exception], Exit], ...] = (
    (LockedError, Exit.LOCKED),
    (ConnectionLostError, Exit.LATER),
    (UnavailableError, Exit.LATER),
    (FullError, Exit.LATER),
    (BusyError, Exit.LATER),
    (BucketError, Exit.LATER),
    (LeaseLostError, Exit.NOT_SO),
    (NotPendingError, Exit.NOT_SO),
    (FormatVersionError, Exit.ERROR),
    (CorruptError, Exit.NOT_SO),
)

_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (
        LockedError,
        (
            "give the address of its server (unix://, tls://) in place of the path, or stop it "
            f"first; these commands work while it runs: {READERS}"
        ),
    ),
    (AccessError, "give the server's token with --token-file, or connect as a user it accepts"),
    (UnavailableError, "start the server, or try again later"),
    (ConnectionLostError, "look whether the call took effect, then try again"),
    (
        FullError,
        "free space, or descriptors (ulimit -n), and try again; no acknowledged message is lost",
    ),
    (FlowControlError, "try again after messages of that slot were delivered or cancelled"),
    (BusyError, "try again later"),
    (ConflictError, "use another message id for another message"),
    (BucketError, "check URL, credentials (environment) and network, and try again"),
    (FormatVersionError, "a newer timerstore wrote it; use that version"),
    (
        CorruptError,
        (
            "`timerstore verify PATH` lists all damage, `timerstore repair PATH NEW` copies the "
            "readable part"
        ),
    ),
    (FailedError, "try again; opening recovers the store from disk. Check the disk's own log"),
    (FileNotFoundError, "check the path"),
    (PermissionError, "run it as the owner of the files"),
)


_STAYS = {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EROFS, errno.ENAMETOOLONG}
"""System errors that trying again does not change."""


def _advice(error: BaseException) -> str:
    """Return what to do. A FailedError with a permanent cause takes the advice for its cause."""
    if COMPLETE in str(error):
        return (
            "open the store, which makes its name durable; a repeated command needs another folder"
        )
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno == errno.EROFS:
        return "give a path on a file system that is mounted for writing"
    if isinstance(error, FailedError) and isinstance(cause, OSError) and cause.errno in _STAYS:
        error = cause
    return next((text for kind, text in _ADVICE if isinstance(error, kind)), "")


def report_of(error: Exception) -> ErrorReport:
    """Describe the exception that ended a command."""
    if isinstance(error, CommandError):
        return error.report
    code = next((code for kind, code in _CODES if isinstance(error, kind)), Exit.ERROR)
    if code is Exit.LATER and isinstance(error, TimerStoreError) and not error.retryable:
        code = Exit.ERROR
    do = _advice(error)
    kind = type(error).__name__
    if isinstance(error, TimerStoreError):
        parts = _text(error.where), _text(error.wanted), _text(error.got)
        return ErrorReport(_without(str(error), *parts), *parts, do, code, kind, page_of(kind))
    if isinstance(error, OSError):
        names = " -> ".join(str(one) for one in (error.filename, error.filename2) if one)
        if error.errno in FULL:  # for example of an export's target
            code, do = Exit.LATER, "free space and try again"
        return ErrorReport(error.strerror or str(error), names, "", "", do, code, kind)
    if isinstance(error, ImportError):
        if (error.name or "").partition(".")[0] == "pyarrow":  # a part of timerstore[cli]
            return ErrorReport("pyarrow is not installed", "", "", "", INSTALL, code, kind)
        return ErrorReport(str(error) or kind, "", "", "", do, code, kind)
    do = "report it as a bug, with the output of `timerstore --debug ...`"
    return ErrorReport(f"unexpected error: {error!r}", "", "", "", do, code, kind)


def _without(text: str, where: str, wanted: str, got: str) -> str:
    """Remove the parts that the report shows separately from the error's text."""
    for word, part in (("got", got), ("wanted", wanted), ("at", where)):
        text = text.removesuffix(f"; {word} {part}") if part else text
    return text


def _text(value: object) -> str:
    return "" if value is None else str(value)
