"""What callers of a sharded store get back: receipts, handles and messages that name their shard.

Data:     handle: `s<shard>.` and the shard's own (format/handle.py), as in s00003.djEgb3JkZXJz...;
          a point stands in no other handle. A lease's receipt (format/lease.py): the same.
Fails:    MessageError on a handle or a receipt that names no shard.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.leases import LeasedMessage
from timerstore._engine.recurring import Recurring
from timerstore.errors import MessageError, typed
from timerstore.messages import Message
from timerstore.receipts import PutBatch, PutReceipt
from timerstore.shards.routing import Shards
from timerstore.shards.shard_paths import SHARD_COUNT_MAX

_HANDLE = re.compile(r"s([0-9]{5})\.(.+)", re.DOTALL)


def join_handle(shard: int, handle: str) -> str:
    """Write a handle; none stays none."""
    return f"s{shard:05d}.{handle}" if handle else ""


def split_handle(handle: object, shard_count: int) -> tuple[int, str]:
    """Give the shard and what it calls the message."""
    return _split("handle", "text or a ShardReceipt", "djEg", handle, shard_count)


def split_receipt(receipt: object, shard_count: int) -> tuple[int, str]:
    """Give the shard and the receipt that it gave for a lease."""
    return _split("receipt", "text or a ShardLeasedMessage", "bDEg", receipt, shard_count)


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
    """What `put` answers: in which shard, and what that shard answered."""

    shard: int
    receipt: PutReceipt

    @property
    def topic(self) -> str:
        """The topic that the message goes to."""
        return self.receipt.topic

    @property
    def message_id(self) -> str:
        """The id that every copy of the message carries."""
        return self.receipt.message_id

    @property
    def handle(self) -> str:
        """A string to cancel by, from any process; empty where the message cannot be cancelled."""
        return join_handle(self.shard, self.receipt.handle)

    @property
    def queue_id(self) -> int:
        """The queue, of its shard."""
        return self.receipt.queue_id

    @property
    def queue_offset(self) -> int | None:
        """Its place in that queue, None while it waits."""
        return self.receipt.queue_offset

    @property
    def log_offset(self) -> int:
        """Its place in its shard's log."""
        return self.receipt.log_offset

    @property
    def due_ms(self) -> int:
        """When it is due, epoch ms."""
        return self.receipt.due_ms

    @property
    def duplicate(self) -> bool:
        """Whether it was put before, under the same message id."""
        return self.receipt.duplicate


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShardBatch:
    """What `put_many` answers: `shards[k]` is where message k went, `parts` what they answered."""

    shards: Shards
    parts: Mapping[int, PutBatch]
    places: Shards
    """Message k is number `places[k]` of its shard's part."""

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
        """Every message's id, in put order."""
        return [one.message_id for one in self]

    @property
    def handles(self) -> list[str]:
        """Every message's handle, in put order."""
        return [one.handle for one in self]


def places_in_parts(shards: Shards) -> Shards:
    """Give each row's number among those of its shard."""
    places = np.empty(len(shards), np.int32)
    for shard in np.unique(shards):
        mine = shards == shard
        places[mine] = np.arange(np.count_nonzero(mine), dtype=np.int32)
    return places


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardMessage(Message):
    """One stored message, and the shard it is in."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardLeasedMessage(LeasedMessage):
    """One leased message, and the shard it is in; its receipt names that, too."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecurring(Recurring):
    """What is put again and again, and the shard that its runs are put in."""

    shard: int


_COPIED: Sequence[str] = [one.name for one in fields(Message) if one.init]
assert SHARD_COUNT_MAX <= 99_999


def in_shard(shard: int, message: Message) -> ShardMessage:
    """Name the shard of a message, and in its handle, too."""
    values: dict[str, Any] = {name: getattr(message, name) for name in _COPIED}
    values["handle"] = join_handle(shard, message.handle)
    return ShardMessage(**values, shard=shard)


def leased_in(shard: int, message: LeasedMessage) -> ShardLeasedMessage:
    """Name the shard of a leased message, and in its receipt, too."""
    values = _values(message)
    values["handle"] = join_handle(shard, message.handle)
    values["receipt"] = join_handle(shard, message.receipt)
    return ShardLeasedMessage(**values, shard=shard)


def recurring_in(shard: int, one: Recurring) -> ShardRecurring:
    """Name the shard of what recurs."""
    return ShardRecurring(**_values(one), shard=shard)


def _values(one: Any) -> dict[str, Any]:
    return {each.name: getattr(one, each.name) for each in fields(one) if each.init}
