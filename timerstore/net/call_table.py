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
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec

from timerstore._engine.leases import AckResult, DeadLetter, LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore._engine.read.pull_request import PullRequest
from timerstore._engine.recurring import Recurring, RecurringRequest
from timerstore._engine.write.put_requests import BatchRequest, PutRequest
from timerstore.api import SingleStoreApi
from timerstore.net import wire_values
from timerstore.net.packed_arguments import converter, packed_batch, portable
from timerstore.types.messages import Message, PullResult
from timerstore.types.reports import (
    BackupReport,
    CancelResult,
    Explanation,
    GroupBacklog,
    PendingTimer,
    Report,
)


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
    takes_long: bool = False
    """Whether it reads the whole store, for a time without a limit."""

    @cached_property
    def decoder(self) -> "msgspec.msgpack.Decoder[Any]":
        """The decoder of the result."""
        return msgspec.msgpack.Decoder(self.result)


@dataclass(frozen=True)
class Signature:
    """The arguments of a call."""

    required: tuple[str, ...]
    defaults: Mapping[str, Any]
    converters: tuple[Callable[[Any], Any], ...]
    """The conversion of each argument to the form of the wire."""

    @classmethod
    def of(cls, method: Callable[..., Any]) -> "Signature":
        """Return the arguments of a method, without `self`."""
        found = list(inspect.signature(method).parameters.values())[1:]
        return cls(
            tuple(one.name for one in found if one.default is one.empty),
            {one.name: one.default for one in found if one.default is not one.empty},
            tuple(converter(method.__name__, one.name) for one in found),
        )

    def pack(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments and options of values that are in the order of the signature."""
        count = len(self.required)
        args = [convert(one) for convert, one in zip(self.converters, values[:count], strict=False)]
        options = {
            name: convert(value)
            for (name, default), convert, value in zip(
                self.defaults.items(), self.converters[count:], values[count:], strict=True
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
            unknown = options.keys() - self.defaults.keys()
            names = ", ".join(sorted(unknown)) if len(unknown) < 10 else f"{len(unknown)} others"
            found.append(f"wanted some of {', '.join(self.defaults)}, got {names}")
        return found


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
    CallSpec("renew", int),
    CallSpec("bury", AckResult),
    CallSpec("commit", AckResult),
    CallSpec("rollback", AckResult),
    CallSpec("dead_letters", int),
    CallSpec("requeue", int, Repeat.NEVER),
    CallSpec("consumer", int),
    CallSpec("backlog", GroupBacklog),
    CallSpec("committed", dict[int, int]),
    CallSpec("delete_topic", bool, Repeat.NEVER, takes_long=True),
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
    CallSpec("verify", Report, takes_long=True),
    CallSpec("backup", BackupReport, takes_long=True),
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
    | {GIVE_BACK.name: Signature(("receipts",), {}, (portable,))}
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
        request = values[0]
        values = values_of(packed_batch(request) if type(request) is BatchRequest else request)
    return SIGNATURES[name].pack(values)


def receipts_in(found: object) -> list[str]:
    """Return the receipts of leased messages in a result."""
    if not isinstance(found, list):
        return []
    return [one.receipt for one in found if isinstance(one, LeasedMessage)]
