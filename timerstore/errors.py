"""Every exception of timerstore.

Fails:    each class says whose fault it is and whether trying again can help (`retryable`).
Holds:    a C status belongs to one class: CLASS_OF_CODE is built from the classes' `code`.
Source:   the codes are enum ts_status of native/api/status.h; native.py compares the two when it is
          imported.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar


class TimerStoreError(Exception):
    """Root of all errors; never raised itself.

    The text is `message`, then `where` (file, offset), what was `wanted` and what was `got`, as far
    as they are given. `retryable` overrides what the class says for this one error.
    """

    code: ClassVar[int | None] = None
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        where: object = None,
        wanted: object = None,
        got: object = None,
        retryable: bool | None = None,
    ) -> None:
        parts = [message]
        if where is not None:
            parts.append(f"at {where}")
        if wanted is not None:
            parts.append(f"wanted {wanted}")
        if got is not None:
            parts.append(f"got {got}")
        super().__init__("; ".join(parts))
        self.what = message
        self.where = where
        self.wanted = wanted
        self.got = got
        if retryable is not None:
            self.retryable = retryable


class _ProblemsError(TimerStoreError, ValueError):
    """The caller's fault: carries every problem that was found, not only the first."""

    def __init__(
        self,
        problems: str | Iterable[str],
        *,
        where: object = None,
        wanted: object = None,
        got: object = None,
        retryable: bool | None = None,
    ) -> None:
        found = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("; ".join(found), where=where, wanted=wanted, got=got, retryable=retryable)
        self.problems: tuple[str, ...] = found


class ConfigError(_ProblemsError):
    """The configuration is wrong, or contradicts the files of the store; `problems` lists all."""


class MessageError(_ProblemsError):
    """A message, or what was asked of one, is wrong; `problems` lists all. Nothing was stored."""

    code = -4


class _AnsweredError(TimerStoreError):
    """Something else would have been answered, by name: `result`; nothing was changed."""

    def __init__(
        self,
        message: str,
        *,
        result: str = "UNKNOWN",
        where: object = None,
        wanted: object = None,
        got: object = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, where=where, wanted=wanted, got=got, retryable=retryable)
        self.result = result


class NotPendingError(_AnsweredError):
    """The message cannot be rescheduled: it was delivered or cancelled, or nobody knows it.

    `result` is what `cancel` would answer (a CancelResult); nothing was changed.
    """


class LeaseLostError(_AnsweredError):
    """The lease cannot be extended: it is over, settled, or unknown; nothing was changed.

    `result` is what `ack` would answer (an AckResult).
    """


class ClosedError(TimerStoreError):
    """The store is shut."""


class ForkedError(TimerStoreError):
    """The store was opened by a parent process; a forked child must open its own."""


class ReadOnlyError(TimerStoreError):
    """What was called would change a store that is opened read-only; nothing was changed."""


class LockedError(TimerStoreError):
    """The directory is open in another process, or already open in this one."""


class ReentrantCallError(TimerStoreError):
    """A signal handler, a finalizer or a callback called a store during another call of the same
    thread, and needed a lock that this call holds. Nothing was changed.
    """


def stopped_at_exit(where: object = None) -> LockedError:
    """Say that a thread of the program stopped in a call when the interpreter began to end."""
    return LockedError(
        "the interpreter is ending, and has stopped another thread amid a call of the store, which "
        "stays as after a kill: nothing that was acknowledged is lost",
        where=where,
        wanted="threads that end, or a store that is closed, before the interpreter ends",
    )


def reentrant_call(where: object = None) -> TimerStoreError:
    """Make the error of a thread that asks for a lock it holds: ReentrantCallError. While the
    interpreter ends, the holder may be a thread that was stopped: LockedError.
    """
    if sys.is_finalizing():
        return stopped_at_exit(where)
    return ReentrantCallError(
        "a signal handler, a finalizer or a callback called the store during another call of the "
        "same thread",
        where=where,
        wanted="a handler that sets a flag for the program to act on",
    )


class FailedError(TimerStoreError):
    """Poisoned by a failed sync or by a file that changed under us; reopen to go on."""


def as_failure(error: BaseException, where: object) -> TimerStoreError:
    """Say what ended a store: an error of its own as it is, anything else, as no memory or Ctrl-C
    amid what cannot be taken up again, as a FailedError.
    """
    if isinstance(error, TimerStoreError) and not isinstance(
        error, LockedError | ReentrantCallError
    ):
        return error
    return FailedError(f"cut off by {error!r}", where=where)


def cannot_listen(host: str, port: int, error: OSError | ValueError) -> ConfigError:
    """Say that there can be no server; ValueError: no name of a host, so not looked for."""
    why = getattr(error, "strerror", None) or error
    return ConfigError(f"port: cannot listen on {host} port {port} ({why})")


class CorruptError(TimerStoreError):
    """Bytes on disk break their format."""

    code = -1


class GoneError(CorruptError):
    """What was asked for lies below the log's beginning: retention removed it. No damage."""


class FormatVersionError(CorruptError):
    """A known magic with a version that this release does not read."""

    code = -3


class FullError(TimerStoreError):
    """No space is left on the disk. Works again when space returns.

    Nothing was stored, but for the first `stored_count` messages of a `put_many`. They are as safe
    as after a `put_many` that returns: durable with `flush="sync"`.
    """

    code = -2
    retryable = True
    stored_count: int = 0


class BusyError(TimerStoreError):
    """Refused by flow control. Try again later.

    Nothing was stored, but for the first `stored_count` messages of a `put_many` with message ids.
    They are as safe as after a `put_many` that returns.
    """

    retryable = True
    stored_count: int = 0


class FlowControlError(BusyError):
    """Too many messages wait for one slot (`slot_messages_max`); nothing was stored.

    Works again when one of them was cancelled, and at once for a due time in another slot.
    """


class FlushTimeoutError(TimerStoreError):
    """Stored, but not known to be durable yet. Try again with the same message id."""

    retryable = True


def _all_classes(root: type[TimerStoreError]) -> Iterator[type[TimerStoreError]]:
    for child in root.__subclasses__():
        yield child
        yield from _all_classes(child)


def _classes_by_code() -> dict[int, type[TimerStoreError]]:
    table: dict[int, type[TimerStoreError]] = {}
    for one in _all_classes(TimerStoreError):
        code = one.__dict__.get("code")
        if code is not None:
            assert code < 0
            assert code not in table, f"{one.__name__}: code {code} is taken"
            table[code] = one
    return table


CLASS_OF_CODE: Mapping[int, type[TimerStoreError]] = MappingProxyType(_classes_by_code())
"""C status (negative) to the class that says it; only `native.raise_status` reads it."""


_QUOTED_CHARACTERS_MAX = 80
_TEXTS = (str, bytes, bytearray)


def quoted(value: object) -> str:
    """Show a value, in at most 80 characters."""
    if type(value) in _TEXTS and len(value) > _QUOTED_CHARACTERS_MAX:  # type: ignore[arg-type]
        value = value[:_QUOTED_CHARACTERS_MAX]  # type: ignore[index]  # not all of some MB
    try:
        text = repr(value)
    except ValueError:
        if type(value) is int:
            return f"a whole number of {value.bit_length()} bits"
        return f"{type(value).__name__} without a text"
    except Exception:  # noqa: BLE001 - a caller's own
        return f"{type(value).__name__} without a text"
    return (
        text if len(text) <= _QUOTED_CHARACTERS_MAX else f"{text[: _QUOTED_CHARACTERS_MAX - 3]}..."
    )


def typed(value: object) -> str:
    """Show what stands where another type was wanted: its own, and the value."""
    kind, text = type(value).__name__, quoted(value)
    return text if value is None or text.startswith(kind) else f"{kind} {text}"
