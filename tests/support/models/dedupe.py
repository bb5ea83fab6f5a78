"""What a caller knows of message ids that it gave, and what a put with one must answer.

A put counts from the time at which it was stored. While the clock never was beyond its window, the
id must be known; where the clock is beyond it now, it must not be; else either is right: the store
may forget, and a clock may go back.
"""

from dataclasses import dataclass
from itertools import count

from tests.support.models.messages import Put
from timerstore import PutReceipt

Name = tuple[str, str]


@dataclass
class _Known:
    put: Put
    store_ms: int
    latest_ms: int  # the latest time that the clock has shown since


class Onces:
    """All message ids, each with its puts, the newest last."""

    def __init__(self) -> None:
        self._known: dict[Name, list[_Known]] = {}

    def name(self, topic: str, which: int, now_ms: int, window_ms: int, lost_below: int = 0) -> str:
        """Return one of a few ids for a topic.

        An id that may be new again is reused only after its message was delivered or cancelled,
        because the model identifies pending messages by their ids.
        """
        for again in count():
            name = f"{topic}-{which}-{again}"
            if all(
                (
                    now_ms - one.store_ms < window_ms > one.latest_ms - one.store_ms
                    and one.put.receipt.log_offset >= lost_below
                )
                or one.put.place is not None
                or one.put.cancelled
                for one in self._known.get((topic, name), ())
            ):
                return name
        raise AssertionError

    def turned(self, now_ms: int) -> None:
        """Record a change of the clock."""
        for knowns in self._known.values():
            for one in knowns:
                one.latest_ms = max(one.latest_ms, now_ms)

    def put(self, name: Name, put: Put, now_ms: int, latest_ms: int = 0) -> None:
        """Record a put that was stored as new at `now_ms`."""
        one = _Known(put, now_ms, max(now_ms, latest_ms))
        self._known.setdefault(name, []).append(one)

    def lost(self, put: Put) -> None:
        """Remove a put that was in flight when the process died, and was not stored."""
        for knowns in self._known.values():
            knowns[:] = [one for one in knowns if one.put is not put]

    def was_new(self, name: Name, now_ms: int, window_ms: int, lost_below: int = 0) -> list[Put]:
        """Return the earlier puts in flight that are now known not to be stored, as an id was new.

        `lost_below` is the log offset below which neither records nor the file of ids exist.
        """
        gone = []
        for one in list(self._known.get(name, ())):
            if one.put.receipt.log_offset < lost_below:
                self._known[name].remove(one)
            elif one.latest_ms - one.store_ms < window_ms:
                assert not one.put.sure, f"put twice: {name} {one}"
                gone.append(one.put)
                self._known[name].remove(one)
        return gone

    def certain(self, name: Name, now_ms: int, window_ms: int, lost_below: int = 0) -> Put | None:
        """Return the put that the store must know by this id; None if it may be new."""
        for one in reversed(self._known.get(name, ())):
            is_young = now_ms - one.store_ms < window_ms > one.latest_ms - one.store_ms
            if is_young and one.put.sure and one.put.receipt.log_offset >= lost_below:
                return one.put
        return None

    def conflicted(
        self, name: Name, body: bytes, now_ms: int, window_ms: int, *, sure: bool
    ) -> Put | None:
        """Return the put with other contents, for which a put of an id was rejected.

        None if it is one of several.
        """
        found = [one for one in self._known.get(name, ()) if now_ms - one.store_ms < window_ms]
        assert found, f"a conflict with nothing: {name}"
        assert all(one.put.body != body for one in found), f"a conflict with itself: {name}"
        if len(found) > 1:
            return None
        found[0].put.sure |= sure
        return found[0].put

    def answered(
        self,
        name: Name,
        receipt: PutReceipt,
        now_ms: int,
        window_ms: int,
        begin: int,
        *,
        sure: bool,
    ) -> Put:
        """Return the put that a duplicate's receipt names, and check that receipt.

        `begin` is the log offset below which retention has removed all records.
        """
        found = [one for one in self._known.get(name, ()) if now_ms - one.store_ms < window_ms]
        assert found, f"a duplicate of nothing: {name}"
        for one in reversed(found):
            put = one.put
            if one.put.receipt.log_offset == receipt.log_offset:
                break
        else:
            raise AssertionError(f"a duplicate of another: {receipt} {found}")
        assert receipt.message_id == name[1]
        if receipt.log_offset < begin:
            return put
        assert receipt.handle == put.receipt.handle
        assert (receipt.queue_id, receipt.queue_offset) == (
            put.receipt.queue_id,
            put.receipt.queue_offset,
        )
        assert receipt.due_ms == put.receipt.due_ms
        assert receipt.cancelled or not put.cancelled, f"it was cancelled: {put}"
        assert not receipt.cancelled or put.cancelled or put.maybe_cancelled, f"nobody did: {put}"
        if sure:
            put.sure = True  # it is durable now
            put.cancelled |= receipt.cancelled
        return put
