"""Show a ShardedStore as one of its shards, with the interface of a TimerStore.

Invariants:
    1. Each call that exists on the ShardedStore goes through it, with keys, names, receipts and
       handles that lead to this shard. Results and errors must name this shard.
    2. All other calls go to the shard itself: its counts, its services, its ingestion.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import Any

from tests.support.inside.parts import spreader_of
from timerstore import Message, PutReceipt, TimerStore
from timerstore._engine.leases import LeasedMessage
from timerstore.errors import FailedError, FullError
from timerstore.shards import ShardedStore, ShardReceipt

_OWN = {
    "config", "consumer", "congestion", "dead_letters", "histogram", "ingest", "ingested", "pace",
    "pending", "receive", "services", "stats", "timing_distribution", "topics", "verify", "flush",
}  # fmt: skip
"""Read from the shard itself, because the ShardedStore combines all shards. cluster.py compares
them.
"""


def in_shard(shard: int, text: str) -> str:
    """Return a handle or receipt in the form of the ShardedStore."""
    return f"s{shard:05d}.{text}"


def plain(message: Any, shard: int, kind: type[Any] = Message) -> Any:
    """Return a message in the form of its shard."""
    assert message.shard == shard, f"not of shard {shard}: {message}"
    values = {one.name: getattr(message, one.name) for one in fields(kind) if one.init}
    for name in ("handle", "receipt"):
        if values.get(name):
            values[name] = _split(values[name], shard)
    return kind(**values)


def leased(message: Any, shard: int) -> LeasedMessage:
    """Return a leased message in the form of its shard."""
    found: LeasedMessage = plain(message, shard, LeasedMessage)
    return found


def _split(text: str, shard: int) -> str:
    begin = in_shard(shard, "")
    assert text.startswith(begin), f"names another shard than {shard}: {text}"
    return text[len(begin) :]


def check_named(error: Exception, shard: int) -> None:
    """Check that an error names its shard."""
    assert str(error).startswith(f"shard {shard}: "), f"not of shard {shard}: {error}"


class Facet:
    """One shard, called through the ShardedStore."""

    def __init__(self, whole: ShardedStore, shard: int) -> None:
        self.whole = whole
        self.shard = shard
        self.own: TimerStore = whole.stores[shard]
        self._spreader = spreader_of(whole)

    def __getattr__(self, name: str) -> Any:
        assert name.startswith("_") or name in _OWN, f"the whole has {name}, too"
        return getattr(self.own, name)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Check that errors name the shard."""
        try:
            yield
        except (FailedError, FullError) as error:
            check_named(error, self.shard)
            raise

    def name(self, given: PutReceipt | str) -> ShardReceipt | str:
        """Return a receipt or handle in the form of the ShardedStore."""
        if isinstance(given, PutReceipt):
            return ShardReceipt(self.shard, given)
        return in_shard(self.shard, given)

    def _receipt(self, found: ShardReceipt) -> PutReceipt:
        assert found.shard == self.shard, f"in shard {found.shard}, not in {self.shard}"
        assert not found.handle or _split(found.handle, self.shard) == found.receipt.handle
        return found.receipt

    # --- puts ---

    def put(self, *given: Any, **named: Any) -> PutReceipt:
        with self._named():
            return self._receipt(self.whole.put(*given, **named))

    def put_many(self, topic: str, bodies: Any, **named: Any) -> list[PutReceipt]:
        is_empty = bodies == [] or bodies[0] == b""
        # if no shard owns the handle, the error names none
        with nullcontext() if is_empty else self._named():
            return [self._receipt(one) for one in self.whole.put_many(topic, bodies, **named)]

    def put_every(self, *given: Any, **named: Any) -> Any:
        made = self.whole.put_every(*given, **named)
        assert made.shard == self.shard
        return made

    def recurring(self) -> list[Any]:
        return [one for one in self.whole.recurring() if one.shard == self.shard]

    def cancel_every(self, name: str) -> bool:
        return self.whole.cancel_every(name)

    # --- pending messages ---

    def cancel(self, given: PutReceipt | str) -> Any:
        with self._named():
            return self.whole.cancel(self.name(given))

    def cancel_many(self, given: Any) -> list[Any]:
        with self._named():
            return self.whole.cancel_many([self.name(one) for one in given])

    def reschedule(self, given: PutReceipt | str, **named: Any) -> PutReceipt:
        with self._named():
            return self._receipt(self.whole.reschedule(self.name(given), **named))

    def explain(self, one: Any) -> Any:
        if not one.handle:
            return self.own.explain(one)
        return self.whole.explain(self.name(one.handle))

    # --- pulls ---

    def pull(self, *given: Any, **named: Any) -> Any:
        with self._named():
            return self.whole.pull(*given, shard=self.shard, **named)

    def pull_batch(self, *given: Any, **named: Any) -> Any:
        with self._named():
            return self.whole.pull_batch(*given, shard=self.shard, **named)

    def begin_pull(self, *given: Any, **named: Any) -> Any:
        with self._named():
            return self.whole.begin_pull(*given, shard=self.shard, **named)

    def offset_at(self, *given: Any) -> int:
        with self._named():
            return self.whole.offset_at(*given, shard=self.shard)

    def query(self, *given: Any, **named: Any) -> list[Message]:
        found = self.whole.query(*given, **named)
        return [plain(one, self.shard) for one in found if one.shard == self.shard]

    # --- leases ---

    def ack(self, receipt: str) -> Any:
        with self._named():
            return self.whole.ack(in_shard(self.shard, receipt))

    def ack_many(self, given: list[Any]) -> list[Any]:
        texts = [one if isinstance(one, str) else one.receipt for one in given]
        with self._named():
            return self.whole.ack_many([in_shard(self.shard, one) for one in texts])

    def nack(self, receipt: str, **named: Any) -> Any:
        with self._named():
            return self.whole.nack(in_shard(self.shard, receipt), **named)

    def bury(self, receipt: str) -> Any:
        with self._named():
            return self.whole.bury(in_shard(self.shard, receipt))

    def requeue(self, group: str, receipts: list[str] | None) -> int:
        if receipts is None:
            receipts = [one.receipt for one in self.own.dead_letters(group)]
        with self._named():
            return self.whole.requeue(group, [in_shard(self.shard, one) for one in receipts])

    def extend(self, receipt: str, **named: Any) -> str:
        with self._named():
            return _split(self.whole.extend(in_shard(self.shard, receipt), **named), self.shard)

    def renew(self, receipt: str, **named: Any) -> int:
        with self._named():
            return self.whole.renew(in_shard(self.shard, receipt), **named)
