"""Every exception of timerstore.

Each class says what went wrong, and whether a repeated call can succeed (`retryable`). A status of
the C code corresponds to one class (CLASS_OF_CODE). The codes are those of `enum ts_status` in
native/api; base/native.py compares the two at import.
"""

import operator
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np


def page_of(name: str) -> str:
    """Return where the documentation has the cause and the remedy of a class."""
    return f"timerstore/docs/errors.md#{name.lower()}"


class TimerStoreError(Exception):
    """The base class of all errors. It is never raised itself.

    The text is `message`, then `where` (file and offset), `wanted` and `got`, as far as they are
    given. `retryable` overrides the value of the class for this error.
    docs/errors.md has the cause and the remedy of each class.
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
    """An error of the caller. `problems` lists every problem, not only the first."""

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
    """The configuration is invalid or contradicts the files of the store; `problems` lists all."""


class MessageError(_ProblemsError):
    """An argument of a call is invalid; `problems` lists all. Nothing was stored."""

    code = -4

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments that are wrong, each once, in the order of `problems`.

        Empty if the problem is one of the message or of the store, not of an argument.
        """
        return tuple(dict.fromkeys(name for one in self.problems for name in _arguments_in(one)))


_NAME = r"[a-z_]+(?:\[[^\]]*\])?"
_PROBLEM = re.compile(rf"((?:{_NAME}(?:, | and ))*{_NAME})(?::| of | ')")
_ONE_OF = re.compile("time: wanted one of ([a-z_]+(?:, [a-z_]+)*?)(?:, got|;|$)")
_OTHER_NAMES = {
    "topics": ("topic",),
    "handle": ("receipt_or_handle",),
    "handles": ("receipts_or_handles",),
    "queue": ("topic", "queue_id"),
    "property": ("properties",),
}


def _arguments_in(problem: str) -> list[str]:
    """Return the names of arguments with which the text of a problem begins."""
    found = _ONE_OF.match(problem) or _PROBLEM.match(problem)
    if found is None:
        return []
    names = [one.partition("[")[0] for one in re.split(", | and ", found[1])]
    known = [name for one in names for name in _OTHER_NAMES.get(one, (one,))]
    return [one for one in known if one in ARGUMENT_NAMES]


ARGUMENT_NAMES = frozenset(
    """
    ack atomic backoff begin begin_ms bodies body by check_after cron delay deliver_at
    deliver_ms end end_ms error every expires_ms flush group half key keys lease letters level
    max_attempts max_count message message_group message_id message_ids missed name offset
    ordered per_second priority properties queue_id queues receipt receipt_or_handle receipts
    receipts_or_handles replace shard spread sql start tags target time time_ms timezone topic
    unique wait wait_at_most
    """.split()  # noqa: SIM905 - a list of one name a line is longer than a page
)
"""The names of arguments that `MessageError.arguments` has; a test compares them with api.py."""


class _AnsweredError(TimerStoreError):
    """The call found another state of the message, named by `result`. Nothing was changed."""

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
    """The message cannot be rescheduled: it was delivered or cancelled, or is unknown.

    `result` is the CancelResult that `cancel` would return. Nothing was changed.
    """


class LeaseLostError(_AnsweredError):
    """The lease cannot be extended: it has ended, was settled, or is unknown.

    `result` is the AckResult that `ack` would return. Nothing was changed.
    """


class ConflictError(TimerStoreError):
    """The message id was put to the topic before, with other contents (`StoreConfig.dedupe`).

    `topic` and `message_id` name the message, and `differs` says what is different: "body",
    "properties" (which include tags and keys), "due time". The first message with the id is
    durable. Nothing was stored, unless another thread put the id during a `put_many`: then its
    first `stored_count` messages are stored, and others may be.
    """

    stored_count: int = 0

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        message_id: str = "",
        differs: Iterable[str] = (),
        where: object = None,
        wanted: object = None,
        got: object = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, where=where, wanted=wanted, got=got, retryable=retryable)
        self.topic = topic
        self.message_id = message_id
        self.differs = tuple(differs)


class ClosedError(TimerStoreError):
    """The store is closed."""


class ForkedError(TimerStoreError):
    """The store was opened by the parent process; a forked child must open its own."""


class ReadOnlyError(TimerStoreError):
    """The call would change a store that is opened read-only. Nothing was changed."""


class LockedError(TimerStoreError):
    """The directory is open in another process, or already open in this one."""


class ReentrantCallError(TimerStoreError):
    """A signal handler, a finalizer or a callback called a store during another call of the same
    thread, and needed a lock that this call holds. Nothing was changed.
    """


def stopped_at_exit(where: object = None) -> LockedError:
    """Return the error for a thread that stopped in a call when the interpreter began to end."""
    return LockedError(
        "the interpreter is ending, and has stopped another thread during a call of the store; the "
        "store is left as after a kill, and no acknowledged message is lost",
        where=where,
        wanted="threads that end, or a store that is closed, before the interpreter ends",
    )


def reentrant_call(where: object = None) -> TimerStoreError:
    """Return the error for a thread that requests a lock that it holds: ReentrantCallError. While
    the interpreter ends, the holder may be a thread that was stopped: then LockedError.
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
    """The store has failed, because a sync failed or a file changed under it. Open it again."""


def as_failure(error: BaseException, where: object) -> TimerStoreError:
    """Return the error with which a store fails. An error of timerstore stays as it is. Any other,
    such as MemoryError or KeyboardInterrupt during a step that cannot be repeated, becomes a
    FailedError.
    """
    if isinstance(error, TimerStoreError) and not isinstance(
        error, LockedError | ReentrantCallError
    ):
        return error
    return FailedError(f"cut off by {error!r}", where=where)


def is_interrupt(error: BaseException) -> bool:
    """Return whether the program interrupted a step of the store, by a signal handler that raised.

    False for errors of timerstore and of the operating system, also if a handler raised while one
    of them was on its way.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, TimerStoreError | MemoryError) or _is_of_system(found):
            return False
        found = found.__context__
    return True


def _is_of_system(error: BaseException) -> bool:
    """Return whether a call of the operating system in timerstore raised an error."""
    if not isinstance(error, OSError) or error.errno is None:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("timerstore.")


def cannot_listen(host: str, port: int, error: OSError | ValueError) -> ConfigError:
    """Return the error of a server that cannot listen. A ValueError means an invalid host name."""
    why = getattr(error, "strerror", None) or error
    return ConfigError(f"port: cannot listen on {host} port {port} ({why})")


class CorruptError(TimerStoreError):
    """Bytes on disk violate their format."""

    code = -1


class GoneError(CorruptError):
    """The requested data are below the beginning of the log: retention removed them. No damage."""


class FormatVersionError(CorruptError):
    """A file has a version that this release does not read."""

    code = -3


_RELEASE = re.compile(r"[0-9][0-9A-Za-z.+-]{0,30}")


def newer_format(
    what: str, release: object, *, where: object = None, wanted: object, got: object
) -> FormatVersionError:
    """Return the error for a file of a newer format. `release`: the one that wrote it, as the file
    says it. Anything that is not the name of a release counts as none.
    """
    is_known = isinstance(release, str) and _RELEASE.fullmatch(release)
    reader = f"timerstore {release} wrote it: install that or" if is_known else "install"
    return FormatVersionError(
        f"{what}: {reader} a newer release", where=where, wanted=wanted, got=got
    )


class FullError(TimerStoreError):
    """The disk is full, or the process has no free descriptor (`ulimit -n`). The call can be
    repeated when there is space, or a descriptor.

    Nothing was stored, except the first `stored_count` messages of a `put_many`. Those are as
    durable as after a `put_many` that succeeds.
    """

    code = -2
    retryable = True
    stored_count: int = 0


class BusyError(TimerStoreError):
    """The call was rejected by flow control. It can be repeated later.

    Nothing was stored, except the first `stored_count` messages of a `put_many`. Those are as
    durable as after a `put_many` that succeeds.
    """

    retryable = True
    stored_count: int = 0


class FlowControlError(BusyError):
    """Too many messages wait for one slot (`slot_messages_max`). As BusyError.

    The call can be repeated when one of them was cancelled, or at once with a due time in another
    slot.
    """


class BucketError(TimerStoreError):
    """An object store does not answer, or rejects a request. Nothing was lost.

    `retryable` is False if the bucket or the permission is missing.
    """

    retryable = True


class ConnectionLostError(TimerStoreError):
    """The connection to the server was lost during a call. Whether the call took effect is unknown.

    Calls that can be sent again without a second effect are repeated. They raise it if no server is
    found in time.
    """

    retryable = True


class UnavailableError(TimerStoreError):
    """No server was reached in time, or it accepts no more connections. Nothing was changed."""

    retryable = True


class AccessError(TimerStoreError):
    """The server rejects this client: wrong token or user."""


class ProtocolError(TimerStoreError):
    """The other side of a connection violates the protocol, or speaks another version of it."""


class ServerError(TimerStoreError):
    """The server met an error of its own during a call; its log has the details."""


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
"""The error class of each C status (a negative number). Only `native.raise_status` reads it."""


_QUOTED_CHARACTERS_MAX = 80
_TEXTS = (str, bytes, bytearray)
_PLAIN = frozenset({str, bytes, int, float, bool, type(None), list, tuple, dict})


def plain(value: Any) -> Any:
    """Return a value of a subclass of str, bytes, int or float, or a number of numpy, as one of
    plain Python. Return any other value unchanged.

    Names are made plain before a store keeps them, so that a class of the caller has no effect on
    stored messages or on later calls.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes.__getitem__(value, slice(None))
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, np.floating):
        return float(value)
    try:
        return operator.index(value)
    except Exception:  # noqa: BLE001 - raised by a class of the caller; TypeError if it is no number
        return value


class Described:
    """An argument that cannot be sent to a server. Its errors there show it as the caller's do."""

    __slots__ = ("kind", "text")

    def __init__(self, kind: str, text: str) -> None:
        """`kind`: the name of its type. `text`: the result of `quoted`."""
        self.kind = kind
        self.text = text

    def __repr__(self) -> str:
        return self.text


def kind_of(value: object) -> str:
    """Return the name of the type of a value."""
    return value.kind if isinstance(value, Described) else type(plain(value)).__name__


def quoted(value: object) -> str:
    """Return the text of a value, in at most 80 characters."""
    if isinstance(value, Described):
        return value.text
    value = plain(value)
    if type(value) in _TEXTS and len(value) > _QUOTED_CHARACTERS_MAX:  # type: ignore[arg-type]
        value = value[:_QUOTED_CHARACTERS_MAX]  # type: ignore[index]  # it may be some MB
    try:
        text = repr(value)
    except ValueError:
        if type(value) is int:
            return f"a whole number of {value.bit_length()} bits"
        return f"{type(value).__name__} without a text"
    except Exception:  # noqa: BLE001 - raised by a class of the caller
        return f"{type(value).__name__} without a text"
    return (
        text if len(text) <= _QUOTED_CHARACTERS_MAX else f"{text[: _QUOTED_CHARACTERS_MAX - 3]}..."
    )


def typed(value: object) -> str:
    """Return the type and the text of a value that has the wrong type."""
    kind, text = kind_of(value), quoted(value)
    return text if value is None or text.startswith(kind) else f"{kind} {text}"
