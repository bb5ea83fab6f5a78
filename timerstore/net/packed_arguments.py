"""Arguments of calls in the form of the wire, so that the server checks the same values.

An argument that the embedded store takes is sent as the plain value that the store would keep.
Every other value is sent as it is, or, if it has no form on the wire, as a description. So the
server refuses it with the text that the embedded store has for it. A check is made here, with the
code of the embedded store, where the plain value depends on it: buffers, receipts, times, columns.

Raises: MessageError, as the embedded store.
On-disk format: none; docs/protocol.md states the form of each value.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.msgpack import Ext

from timerstore._engine.base import argument_types, due_times, message_fields
from timerstore._engine.base.message_fields import (
    encode_properties,
    is_nothing,
    is_utf8,
    list_of_keys,
)
from timerstore._engine.format.handle import encode, handle_of
from timerstore._engine.leases import Backoff, DeadLetter, LeasedMessage
from timerstore._engine.leases.receive_request import ordered_topics
from timerstore._engine.storage.anchor import path_text
from timerstore._engine.write.checked_batch import gather_ids
from timerstore._engine.write.put_many import is_for_all
from timerstore._engine.write.put_requests import BatchRequest
from timerstore.errors import ConfigError, plain, quoted
from timerstore.net import wire_values
from timerstore.types.receipts import PutReceipt

Convert = Callable[[Any], Any]

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_BYTES = frozenset({bytes})
_TEXTS = frozenset({str})
_NUMBERS = frozenset({int, float})
_BODY_BYTES_MAX = 2**62  # the server knows the limit
_LONGEST_SPAN = timedelta(days=100_000)


def portable(value: Any) -> Any:
    """Return the form of any value."""
    kind = type(value)
    if kind in _PLAIN or kind is Ext:
        return value
    if kind is list and _PLAIN.issuperset(map(type, value)):
        return value
    if kind is dict and _PLAIN.issuperset(map(type, chain(value, value.values()))):
        return value
    found = plain(value)
    return found if type(found) in _PLAIN else wire_values.description(value)


# --- arguments that have another form than any value ---


def _handle(value: Any) -> Any:
    return encode(handle_of(value)) if isinstance(value, PutReceipt) else portable(value)


def _receipt(value: Any) -> Any:
    return portable(value.receipt if isinstance(value, LeasedMessage | DeadLetter) else value)


def _half(value: Any) -> Any:
    return _handle(value) if isinstance(value, PutReceipt) else _receipt(value)


def _several(name: str, convert: Convert) -> Convert:
    """Return the conversion of a sequence. Its errors are those of the store."""

    def converted(values: Any) -> Any:
        given = list(argument_types.several(name, values))
        return [argument_types.read_of(name, at, one, convert) for at, one in enumerate(given)]

    return converted


def _letters(value: Any) -> Any:
    """Return the receipt of one dead letter, or those of several."""
    if value is None or isinstance(value, str | DeadLetter):
        return _receipt(value)
    return _several("letters", _receipt)(value)


def _span(value: Any) -> Any:
    if not isinstance(value, timedelta):
        return portable(value)
    if timedelta() <= value <= _LONGEST_SPAN:
        return value.total_seconds()
    return wire_values.span_extension(value)


def _moment(name: str) -> Convert:
    """Return the conversion of a datetime, which must have a time zone."""

    def converted(value: Any) -> Any:
        if not isinstance(value, datetime):
            return portable(value)
        if value.utcoffset() is None:
            return wire_values.moment_extension(value)  # the server rejects it
        moment = due_times.fixed_moment(name, value)
        try:
            return moment.astimezone(UTC)
        except OverflowError:  # its time in UTC is before the year 1 or after 9999
            return wire_values.moment_extension(moment)

    return converted


def _body(value: Any) -> Any:
    return value if type(value) is bytes else bytes(message_fields.view_of(value, "body"))


def _items(value: Any) -> Any:
    """Return an iterable of any type as a list."""
    if type(value) in _PLAIN:
        return value
    try:
        return [portable(one) for one in value]
    except TypeError:  # it cannot be iterated over
        return portable(value)


def _keys(value: Any) -> Any:
    value = plain(value)
    if type(value) in _PLAIN:
        return value
    return [] if is_nothing(value) else [portable(one) for one in list_of_keys(value)]


def _mapping(value: Any) -> Any:
    """Return a mapping as a dict. A name that has no form is its text: maps have plain names."""
    if not isinstance(value, Mapping):
        return portable(value)
    names = [one if type(one := plain(name)) in _PLAIN else quoted(one) for name in value]
    return dict(zip(names, map(portable, value.values()), strict=True))


def _properties(value: Any) -> Any:
    if type(plain(value)) not in _PLAIN and is_nothing(value):
        return {}
    if isinstance(value, Mapping) and not all(map(_is_name, value)):
        encode_properties(None, (), value)  # raises
    return _mapping(value)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and is_utf8(plain(name))


def _topics(value: Any) -> Any:
    """Return a topic, or several as a list."""
    value = plain(value)
    if isinstance(value, str) or not isinstance(ordered_topics(value), Iterable):
        return portable(value)
    return _several("topics", portable)(value)


def _backoff(value: Any) -> Any:
    if isinstance(value, Backoff):
        return wire_values.backoff_extension(value)
    value = plain(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
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


def _as_packed(value: Any) -> Any:
    return value


_BY_NAME: Mapping[str, Convert] = MappingProxyType(
    {
        "receipt_or_handle": _handle,
        "receipts_or_handles": _several("receipts_or_handles", _handle),
        "receipt": _receipt,
        "receipts": _several("receipts", _receipt),
        "ack": _several("ack", _receipt),
        "half": _half,
        "letters": _letters,
        "body": _body,
        "keys": _keys,
        "properties": _properties,
        "queues": _items,
        "through": _mapping,
        "backoff": _backoff,
        "target": owner_folder,
        "progress": _progress,
        "delay": _span,
        "spread": _span,
        "wait_at_most": _span,
        "check_after": _span,
        "lease": _span,
        "every": _span,
        "deliver_at": _moment("deliver_at"),
        "start": _moment("start"),
        "begin": _moment("begin"),
        "end": _moment("end"),
        "time": _moment("time"),
    }
)
_BY_CALL: Mapping[tuple[str, str], Convert] = MappingProxyType(
    {
        ("receive", "topic"): _topics,
        ("put_many", "keys"): _as_packed,
        ("put_many", "message_ids"): _as_packed,
        ("put_many", "priority"): _as_packed,
    }
)


def converter(call: str, name: str) -> Convert:
    """Return the conversion of an argument of a call."""
    return _BY_CALL.get((call, name)) or _BY_NAME.get(name, portable)


def packed_options(call: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a call in the form of the wire."""
    return {name: converter(call, name)(value) for name, value in given.items()}


# --- a batch ---


def packed_batch(request: BatchRequest) -> BatchRequest:
    """Return a batch whose columns are lists of plain values, or columns of the wire."""
    bodies = request.bodies
    count = message_fields.count_bodies(bodies)
    if type(bodies) is not list or not _BYTES.issuperset(map(type, bodies)):
        data, offsets, _ = message_fields.gather_bodies(bodies, _BODY_BYTES_MAX)
        bodies = wire_values.spans_extension(data, offsets)
    return BatchRequest(
        request.topic,
        bodies,
        _numbers("deliver_ms", request.deliver_ms, count),
        _numbers("delay", request.delay, count),
        request.spread,
        request.tags,
        _keys_of_rows(request.keys),
        _ids(request.message_ids, count),
        request.queue_id,
        request.atomic,
        request.flush,
        request.level,
        _priorities(request.priority),
    )


def _numbers(name: str, given: Any, count: int) -> Any:
    if given is None or type(given) in _NUMBERS:
        return given
    if type(given) is list and _NUMBERS.issuperset(map(type, given)):
        return given
    if isinstance(given, timedelta) and name == "delay":
        return _span(given)
    return wire_values.column_extension(due_times.numbers_of(given, count, name))


def _keys_of_rows(keys: Any) -> Any:
    if type(keys) is list and _TEXTS.issuperset(map(type, keys)):
        return keys
    is_row = isinstance(keys, Sequence) and not isinstance(keys, str | bytes)
    if is_row or (isinstance(keys, np.ndarray) and keys.ndim > 0):
        return [_keys(one) for one in keys]
    return portable(keys)


def _ids(message_ids: Any, count: int) -> Any:
    if isinstance(message_ids, tuple) and len(message_ids) == 2:
        data = plain(message_ids[0])
        if not isinstance(data, str | None):
            column = gather_ids(message_ids, count)
            return None if column is None else wire_values.spans_extension(*column)
    if isinstance(message_ids, Sequence) and not isinstance(message_ids, str | bytes):
        return [portable(one) for one in message_ids]
    return portable(message_ids)


def _priorities(priority: Any) -> Any:
    if priority is None or is_for_all(priority):
        return portable(priority)
    return _several("priority", portable)(priority)
