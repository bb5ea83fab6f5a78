"""The calls that travel: one row each, for the server and for both clients.

A row names the call, the type of its result on the wire and the conversions of the result, and
whether a client may send it again after the connection was lost. Arguments are taken from the
signature in `SingleStoreApi`: those without a default by position, the others by name.

To make another call of SingleStoreApi travel, add its row to `STORE_CALLS`.
"""

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec

from timerstore._engine.base import argument_types, due_times
from timerstore._engine.leases import AckResult, Backoff, DeadLetter, LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest, ordered_topics
from timerstore._engine.read.pull_request import PullRequest
from timerstore._engine.recurring import Recurring, RecurringRequest
from timerstore._engine.storage.paths import path_text
from timerstore._engine.write.put_requests import BatchRequest, PutRequest
from timerstore.api import SingleStoreApi
from timerstore.errors import ConfigError, MessageError, quoted
from timerstore.messages import Message, PullResult
from timerstore.net import wire_values
from timerstore.receipts import PutReceipt
from timerstore.reports import BackupReport, CancelResult, Explanation, PendingTimer, Report


class Repeat(enum.Enum):
    """Whether a call may be sent again after the connection was lost during it."""

    ALWAYS = "a second time changes nothing more"
    WITH_ID = "only if the server remembers message ids, which then make it happen once"
    NEVER = "a second time may have a second effect"


@dataclass(frozen=True)
class CallSpec:
    """One call."""

    name: str
    result: Any
    """The type of the result on the wire."""
    repeat: Repeat = Repeat.ALWAYS
    to_wire: Callable[[Any], Any] | None = None
    from_wire: Callable[[Any], Any] | None = None
    waits: bool = False
    """Whether it can wait for messages, for `wait` seconds."""

    @cached_property
    def decoder(self) -> "msgspec.msgpack.Decoder[Any]":
        """The decoder of the result."""
        return msgspec.msgpack.Decoder(self.result)


@dataclass(frozen=True)
class Signature:
    """The arguments of a call."""

    required: tuple[str, ...]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, method: Callable[..., Any]) -> "Signature":
        """Return the arguments of a method, without `self`."""
        found = list(inspect.signature(method).parameters.values())[1:]
        return cls(
            tuple(one.name for one in found if one.default is one.empty),
            {one.name: one.default for one in found if one.default is not one.empty},
        )

    def pack(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments and options of values that are in the order of the signature."""
        count = len(self.required)
        args = list(map(packed_argument, self.required, values))
        options = {
            name: packed_argument(name, value)
            for name, default, value in zip(
                self.defaults, self.defaults.values(), values[count:], strict=True
            )
            if value is not default
        }
        return args, options

    def problems(self, args: list[Any], options: dict[str, Any]) -> list[str]:
        """Return the errors in the number and the names of received arguments."""
        found = []
        if len(args) != len(self.required):
            found.append(f"wanted the arguments {', '.join(self.required)}, got {len(args)}")
        if not options.keys() <= self.defaults.keys():
            unknown = sorted(options.keys() - self.defaults.keys())
            found.append(f"wanted some of {', '.join(self.defaults)}, got {', '.join(unknown)}")
        return found


# --- arguments whose form on the wire is another one ---


def _handle(value: Any) -> Any:
    if not isinstance(value, PutReceipt):
        return value
    if value.waits_for_level:
        raise MessageError(
            "receipt: wanted one of a timer, got one of a message with a fixed level, which "
            "has no handle and stays as it is"
        )
    return value.handle


def _receipt_text(value: Any) -> Any:
    return value.receipt if isinstance(value, LeasedMessage | DeadLetter) else value


def _several(name: str, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the conversion of a sequence. Its errors are those of the store."""

    def converted(values: Any) -> Any:
        given = list(argument_types.several(name, values))
        return [argument_types.read_of(name, at, one, convert) for at, one in enumerate(given)]

    return converted


def _letters(value: Any) -> Any:
    """Return the receipt of one dead letter, or those of several."""
    if value is None or isinstance(value, str | DeadLetter):
        return _receipt_text(value)
    return _several("letters", _receipt_text)(value)


def _span(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _moment(name: str) -> Callable[[Any], Any]:
    """Return the check of a datetime, which must have a time zone to travel."""

    def checked(value: Any) -> Any:
        if isinstance(value, datetime):
            due_times.moment_ms(name, value)
        return value

    return checked


def _strings(value: Any) -> Any:
    """Return byte strings: a pair of a buffer and offsets as one value, a list as it is."""
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[1], str | bytes):
        return wire_values.spans_extension(*value)
    return value


def _backoff(value: Any) -> Any:
    if isinstance(value, Backoff):
        return wire_values.backoff_extension(value)
    if isinstance(value, list | tuple):
        return [_span(one) for one in value]
    return _span(value)


def owner_folder(value: Any) -> str:
    """Return the path of a folder that the owner of the store writes.

    Raises:
        ConfigError: the path is relative. It would be one to the owner's working directory, which a
            client does not know.
    """
    text = path_text("backup", value)
    if not text.startswith("/"):
        raise ConfigError(
            "backup: wanted an absolute path, as the process that has the store open writes the "
            f"folder, got {quoted(text)}"
        )
    return text


def _progress(value: Any) -> Any:
    if value is not None:
        raise ConfigError("progress: wanted None, as the backup is made in another process")
    return value


_CONVERTED: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "topic": ordered_topics,  # a set would travel as a list
        "receipt_or_handle": _handle,
        "receipts_or_handles": _several("receipts_or_handles", _handle),
        "receipt": _receipt_text,
        "receipts": _several("receipts", _receipt_text),
        "letters": _letters,
        "bodies": _strings,
        "message_ids": _strings,
        "backoff": _backoff,
        "target": owner_folder,
        "progress": _progress,
        "delay": _span,
        "spread": _span,
        "wait_at_most": _span,
        "lease": _span,
        "every": _span,
        "deliver_at": _moment("deliver_at"),
        "start": _moment("start"),
        "begin": _moment("begin"),
        "end": _moment("end"),
        "time": _moment("time"),
    }
)


def packed_argument(name: str, value: Any) -> Any:
    """Return the form of an argument on the wire."""
    convert = _CONVERTED.get(name)
    return value if convert is None else convert(value)


# --- the table ---

_RECEIPT = (
    wire_values.ReceiptRecord,
    Repeat.WITH_ID,
    wire_values.record_of_receipt,
    wire_values.receipt_of_record,
)
_MOVED = (_RECEIPT[0], Repeat.NEVER, *_RECEIPT[2:])
_BATCH = (
    wire_values.BatchRecord,
    Repeat.WITH_ID,
    wire_values.record_of_batch,
    wire_values.batch_of_record,
)
_HISTOGRAM = (
    wire_values.HistogramRecord,
    Repeat.ALWAYS,
    wire_values.record_of_histogram,
    wire_values.histogram_of_record,
)
_COLUMNS = (
    wire_values.ColumnsRecord,
    Repeat.ALWAYS,
    wire_values.record_of_columns,
    wire_values.columns_of_record,
)


def _by_name(*specs: CallSpec) -> Mapping[str, CallSpec]:
    return MappingProxyType({one.name: one for one in specs})


STORE_CALLS = _by_name(
    CallSpec("put", *_RECEIPT),
    CallSpec("put_many", *_BATCH),
    CallSpec("put_every", Recurring),
    CallSpec("recurring", list[Recurring]),
    CallSpec("cancel_every", bool),
    CallSpec("cancel", CancelResult),
    CallSpec("cancel_many", list[CancelResult]),
    CallSpec("reschedule", *_MOVED),
    CallSpec("receive", list[LeasedMessage], waits=True),
    CallSpec("ack", AckResult),
    CallSpec("ack_many", list[AckResult]),
    CallSpec("nack", AckResult),
    CallSpec("extend", str, Repeat.NEVER),
    CallSpec("bury", AckResult),
    CallSpec("dead_letters", int),
    CallSpec("requeue", int, Repeat.NEVER),
    CallSpec("consumer", int),
    CallSpec("committed", dict[int, int]),
    CallSpec("offset_at", int),
    CallSpec("topics", dict[str, int]),
    CallSpec("pull", PullResult, waits=True),
    CallSpec("pull_batch", *_COLUMNS, waits=True),
    CallSpec("query", list[Message]),
    CallSpec("pending", int),
    CallSpec("histogram", *_HISTOGRAM),
    CallSpec("explain", Explanation),
    CallSpec("stats", dict[str, Any]),
    CallSpec("timing_distribution", dict[int | None, int]),
    CallSpec("congestion", dict[int, int]),
    CallSpec("pace", None),
    CallSpec("flush", None),
    CallSpec("verify", Report),
    CallSpec("backup", BackupReport),
)
"""The calls of a store. `consumer`, `pending` and `dead_letters` return the number of a target, for
the calls below."""

GIVE_BACK = CallSpec("give_back", int)
"""A client makes it for messages that it received and its caller did not get."""

CONSUMER_CALLS = _by_name(
    CallSpec("poll", list[Message], Repeat.NEVER, waits=True),
    CallSpec("commit", dict[int, int], Repeat.NEVER),
    CallSpec("seek", dict[int, int], Repeat.NEVER),
    CallSpec("queues", list[int], Repeat.NEVER),
    CallSpec("close", None, Repeat.NEVER),
)
"""The calls of a consumer. A consumer ends with its connection, so none can be sent again."""

LIST_CALLS: Mapping[str, Mapping[str, CallSpec]] = MappingProxyType(
    {
        name: _by_name(
            CallSpec("next", list[row], Repeat.NEVER),  # type: ignore[valid-type]
            CallSpec("close", None, Repeat.NEVER),
        )
        for name, row in (("pending", PendingTimer), ("dead_letters", DeadLetter))
    }
)
"""By the call that made a list, the list's calls. `next` returns the next messages, and at the end
an empty list."""

SIGNATURES: Mapping[str, Signature] = MappingProxyType(
    {name: Signature.of(getattr(SingleStoreApi, name)) for name in STORE_CALLS}
    | {GIVE_BACK.name: Signature(("receipts",), {})}
)


_REQUESTS = {
    one: tuple(field.name for field in fields(one) if not field.kw_only)
    for one in (PutRequest, BatchRequest, PullRequest, ReceiveRequest, RecurringRequest)
}
_VALUES = {one: attrgetter(*names) for one, names in _REQUESTS.items()}


def pack_call(name: str, values: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments and options of a call, from the values that `StoreApi` passes on: one
    request, or one value for each argument.
    """
    if values and (values_of := _VALUES.get(type(values[0]))) is not None:
        values = values_of(values[0])
    return SIGNATURES[name].pack(values)


def receipts_in(found: object) -> list[str]:
    """Return the receipts of leased messages in a result."""
    if not isinstance(found, list):
        return []
    return [one.receipt for one in found if isinstance(one, LeasedMessage)]
