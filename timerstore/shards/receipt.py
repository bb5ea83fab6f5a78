"""The results of a sharded store: receipts, handles and messages that name their shard.

A handle is `s<shard>.` and the handle of that shard (format/handle.py), as in
s00003.djEgb3JkZXJz...; no other handle contains a point. The receipt of a lease (format/lease.py)
has the same form.

Raises: MessageError for a handle or a receipt that names no shard.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.leases import DeadLetter, LeasedMessage
from timerstore._engine.recurring import Recurring
from timerstore.errors import MessageError, typed
from timerstore.shards.routing import Shards
from timerstore.shards.shard_paths import SHARD_COUNT_MAX
from timerstore.types.messages import Message
from timerstore.types.receipts import PutBatch, PutReceipt

_HANDLE = re.compile(r"s([0-9]{5})\.(.+)", re.DOTALL)


def join_handle(shard: int, handle: str) -> str:
    """Return the handle with its shard, or "" for an empty handle."""
    return f"s{shard:05d}.{handle}" if handle else ""


def split_handle(handle: object, shard_count: int) -> tuple[int, str]:
    """Return the shard, and the handle in that shard."""
    return _split("handle", "text or a ShardReceipt", "djEg", handle, shard_count)


def split_receipt(receipt: object, shard_count: int) -> tuple[int, str]:
    """Return the shard, and its receipt of a lease."""
    return _split("receipt", "text or a ShardLeasedMessage", "bDEg", receipt, shard_count)


def split_letter(receipt: object, shard_count: int) -> tuple[int, str]:
    """Return the shard, and its receipt of a dead letter."""
    wanted = "a DeadLetter or its receipt"
    return _split("dead letter", wanted, "ZDEg", receipt, shard_count)


def _split(name: str, wanted: str, begin: str, given: object, shard_count: int) -> tuple[int, str]:
    if not isinstance(given, str):
        raise MessageError(f"{name}: wanted {wanted}, got {typed(given)}")
    found = _HANDLE.fullmatch(given)
    if found is None:
        raise MessageError(
            f"{name}: wanted one that names its shard, as in s00003.{begin}..., got {given[:80]!r}"
        )
    shard = int(found[1])
    if shard >= shard_count:
        raise MessageError(f"{name}: wanted one of {shard_count} shards, got shard {shard}")
    return shard, found[2]


class ShardReceipt(NamedTuple):
    """The result of `put`: the shard, and the receipt of that shard."""

    shard: int
    receipt: PutReceipt

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self.receipt.topic

    @property
    def message_id(self) -> str:
        """The id of the message, which all its copies share."""
        return self.receipt.message_id

    @property
    def handle(self) -> str:
        """A text with which any process can cancel the message; empty if it cannot be cancelled."""
        return join_handle(self.shard, self.receipt.handle)

    @property
    def queue_id(self) -> int:
        """The queue in its shard."""
        return self.receipt.queue_id

    @property
    def queue_offset(self) -> int | None:
        """The offset in that queue, or None while the message is pending."""
        return self.receipt.queue_offset

    @property
    def log_offset(self) -> int:
        """The offset in the log of its shard."""
        return self.receipt.log_offset

    @property
    def due_ms(self) -> int:
        """The due time, milliseconds since 1970."""
        return self.receipt.due_ms

    @property
    def duplicate(self) -> bool:
        """Whether the message id was put before, so that this is the receipt of the first put."""
        return self.receipt.duplicate


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShardBatch:
    """The result of `put_many`: the shard of each message, and the receipts of each shard."""

    shards: Shards
    parts: Mapping[int, PutBatch]
    places: Shards
    """Message k is number `places[k]` in the part of its shard."""

    def __repr__(self) -> str:
        return f"ShardBatch(<{len(self)} receipts of {len(self.parts)} shards>)"

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, at: int) -> ShardReceipt:
        shard = int(self.shards[at])
        return ShardReceipt(shard, self.parts[shard][int(self.places[at])])

    def __iter__(self) -> Iterator[ShardReceipt]:
        return map(self.__getitem__, range(len(self)))

    @property
    def message_ids(self) -> list[str]:
        """The id of each message, in the order of the put."""
        return [one.message_id for one in self]

    @property
    def handles(self) -> list[str]:
        """The handle of each message, in the order of the put."""
        return [one.handle for one in self]


def places_in_parts(shards: Shards) -> Shards:
    """Return each row's number among those of its shard."""
    places = np.empty(len(shards), np.int32)
    for shard in np.unique(shards):
        mine = shards == shard
        places[mine] = np.arange(np.count_nonzero(mine), dtype=np.int32)
    return places


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardMessage(Message):
    """One stored message and its shard."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardLeasedMessage(LeasedMessage):
    """One leased message and its shard, which its receipt also names."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardDeadLetter(DeadLetter):
    """One dead letter and its shard, which its receipt also names."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecurring(Recurring):
    """One recurring definition, and the shard of its runs."""

    shard: int


_COPIED: Sequence[str] = [one.name for one in fields(Message) if one.init]
assert SHARD_COUNT_MAX <= 99_999


def in_shard(shard: int, message: Message) -> ShardMessage:
    """Return a message with its shard, which its handle then also names."""
    values: dict[str, Any] = {name: getattr(message, name) for name in _COPIED}
    values["handle"] = join_handle(shard, message.handle)
    return ShardMessage(**values, shard=shard)


def leased_in(shard: int, message: LeasedMessage) -> ShardLeasedMessage:
    """Return a leased message with its shard, which its receipt then also names."""
    values = _values(message)
    values["handle"] = join_handle(shard, message.handle)
    values["receipt"] = join_handle(shard, message.receipt)
    return ShardLeasedMessage(**values, shard=shard)


def letter_in(shard: int, letter: DeadLetter) -> ShardDeadLetter:
    """Return a dead letter with its shard, which its receipt then also names."""
    values = _values(letter)
    values["receipt"] = join_handle(shard, letter.receipt)
    return ShardDeadLetter(**values, shard=shard)


def recurring_in(shard: int, one: Recurring) -> ShardRecurring:
    """Return a recurring definition with its shard."""
    return ShardRecurring(**_values(one), shard=shard)


def _values(one: Any) -> dict[str, Any]:
    return {each.name: getattr(one, each.name) for each in fields(one) if each.init}
