"""Derive the state of every timer from one scan of the whole commit log.

A timer is pending, delivered or cancelled. The fold is used if the state side file is missing or
does not fit the log, and once when a broker's store is imported. Verify uses it too.

A *source* is the record that a message was put as. A roll, or a move by retention, appends another
*copy*. The *current copy* is the one that will be delivered. Two kinds of evidence are folded, in
this order:

1. *By id.* A record whose TS_ID names an own store id belongs to timer `q`, whatever else it says.
   The first delivery or delete record of `q` in log order decides its state. The current copy is
   the one with the highest roll count, and of equal ones the last.

   A store id is own if the caller says so or if a record vouches for it. A source vouches if its
   `q` is its own queue offset, unless a source of the same store id has a `q` above its queue
   offset. A copy that rolled or was moved by retention vouches if it lies where its TS_PLACE says;
   its source may be gone. Any other store id counts as no TS_ID. The same holds for a TS_ID that a
   client left on a message that it sent on (native/log/parse.h), also if the message kept a roll
   count or a broker rolled it (`fold_ownership.settle_uncertain`).
2. *By matching*, for records of a broker: groups of equal (identity, out_ms), in log order.

    | record             | meaning within its group                                             |
    |--------------------|----------------------------------------------------------------------|
    | timer, no rolls    | one more message                                                     |
    | timer, rolls > 0   | a later copy of a message. If retention has removed all records      |
    |                    | without rolls, the copies of the group stand for one message         |
    | delivered          | delivers the earliest pending message. Without one, it is a          |
    |                    | duplicate, or an orphan if no record of the group precedes it        |

   Of n messages, the n copies with the highest roll counts are current (of equal ones the last),
   and the copy with the most rolls belongs to the earliest message. All other copies are
   superseded: they are neither pending nor delivered, and are not listed. The id of a message is
   the queue offset of its current copy.

   Example: one message rolled twice. A crash repeated its first roll, and it was delivered twice.

        queue offset    4     9     12    15    -          -
        record          t0    t1    t1    t2    delivered  delivered
        result: 15 is delivered; 4, 9 and 12 are not listed; the second delivery is a duplicate.

   A delivery that names an id for the second time, or an id without any copy left, may be a
   broker's delivery of a message that was sent on with our TS_ID. It is matched with a message of
   its group, if there is one.

*Imported messages that this store continued* carry our TS_ID on later copies, while their source
has none. Such a record claims the source at queue offset `q`, together with its group. If the claim
is a delivery or a delete, that message is decided and takes no part in the matching. If it is only
a copy (rolled by us, or moved), the message stays in the matching with that copy as the current
one.

*Delete records without a TS_ID* have the same effect as in RocketMQ, which reads the delete records
of a slot first and then drops every message of that slot with the same key. So a delete cancels all
messages with its out_ms whose identity (topic and key) or bare identity (key, the form up to 5.3.1)
is its value, also a message that was stored after it. The check in put rejects a delete that is
already due, so both were in the slot before it was read. A message that the log shows as delivered
stays delivered. Our own messages (with TS_ID) that were stored after the delete are not cancelled:
this store never applies such a delete while it runs, and a rebuild must not cancel a message whose
key a caller used again.

*Delay levels* have no ids, but places: queue number and queue offset in the level topic. Our
deliveries name the place of their source. The first delivery that names a place delivers that
source if the identity is the same. All other deliveries are matched by (identity, delay_level) as
above: those of a broker, and one that names a place for the second time, because a consumer's retry
sends our mark on with the message. A delivery with both TIMER_OUT_MS and DELAY counts as a level's
if no timer explains it or if it names an id for the second time.

The fold sorts, so it takes O(n log n) time. In addition to the scan (96 bytes for each record) it
takes about 130 bytes for each timer and delivery. Measured with 2 million rows: 240 MB, and 1 s
with ids or 2.5 s by matching. Identities are 64-bit hashes. Among 10^8 keys two different ones
collide with probability 3e-4, which matters only if TIMER_OUT_MS is equal too.

Known limitation: of two sends with equal key and TIMER_OUT_MS only the later one may have rolled,
after the clock was set back. Then the two exchange places, because of two equal messages the less
rolled copy stays.

Thread safety: pure functions on arrays.
Invariants:
    1. ids_pending, ids_delivered and ids_cancelled ascend and have no id in common.
    2. A record that fits no rule is counted in the result, never dropped silently.
Raises: ValueError if the array is not SCAN_DTYPE or not in log order.
See also: docs/exactly-once.md, docs/file-format.md.
"""

from dataclasses import dataclass

import numpy as np

from timerstore._engine.log.fold_by_id import (
    CANCELLED,
    DELIVERED,
    PENDING,
    fold_by_id,
    maybe_sent_on,
)
from timerstore._engine.log.fold_by_matching import match_timers, named_by_deletes
from timerstore._engine.log.fold_levels import match_levels
from timerstore._engine.log.fold_ownership import own_mask, own_store_ids, settle_uncertain
from timerstore._engine.log.multiset import Int64, Mask, Rows
from timerstore._engine.log.scanned_records import SCAN_DTYPE, RecordKind, Scan


@dataclass(frozen=True, slots=True)
class Fold:
    """Result of `fold`. Rows are indexes into the scan.

    Arrays ascend, except those that are in the order of another array.
    """

    store_id: int | None
    """Own store id: the caller's, or that of the last source that vouches. None without any."""
    store_ids: tuple[int, ...]
    """Every store id that was taken as own."""
    ids_pending: Int64
    rows_pending: Rows
    """Row of each pending id's current copy, in the order of ids_pending."""
    offsets_pending: Int64
    """Log offset of each pending id's current copy, in the order of ids_pending."""
    ids_delivered: Int64
    ids_cancelled: Int64
    next_id: int
    """One more than the highest queue offset or own timer id in the log."""
    duplicate_rows: Rows
    """Deliveries in excess of their sources, delay levels included."""
    orphan_rows: Rows
    """Deliveries without any source before them in the log."""
    delivered_though_cancelled: int
    """Number of messages that were delivered although a delete record names them."""
    unusable_rows: Rows
    """Records in the timer topic that cannot be delivered (kind UNUSABLE)."""
    level_rows_pending: Rows
    """Messages of delay levels that are not delivered yet."""
    level_places_done: Int64
    """Places of level messages that need no delivery, ascending. Includes unusable records."""
    level_delivered_count: int

    @property
    def cancelled_count(self) -> int:
        """Number of cancelled messages."""
        return len(self.ids_cancelled)

    @property
    def duplicate_count(self) -> int:
        """Number of deliveries in excess of their sources."""
        return len(self.duplicate_rows)


def fold(scan: Scan, store_id: int | None = None, known_id: int | None = None) -> Fold:
    """Fold the records of a whole log.

    store_id: if given, the only store id that is own.
    known_id: a store id that is own according to a side file, whatever ids clients send on with it.

    Raises:
        ValueError: the array is not SCAN_DTYPE or not in log order.
    """
    if scan.dtype != SCAN_DTYPE:
        raise ValueError(f"scan has dtype {scan.dtype}, wanted SCAN_DTYPE")
    if len(scan) > 1 and not bool(np.all(np.diff(scan["log_offset"]) > 0)):
        raise ValueError("scan is not in log order")
    own_ids, own_id = own_store_ids(scan, store_id, known_id)
    own = own_mask(scan, own_ids, own_id)
    next_id = _next_id(scan, own)
    settled = settle_uncertain(scan, own)
    if len(settled.foreign_rows):
        own, scan = settled.own, scan.copy()
        scan["timer_id"] = settled.timer_id
    timers_by_id, id_duplicate_rows, both = fold_by_id(scan, own)
    maybe = maybe_sent_on(scan, own, timers_by_id, id_duplicate_rows)
    matched = match_timers(scan, own, timers_by_id, maybe)
    id_duplicate_rows = np.setdiff1d(id_duplicate_rows, matched.sent_on_rows)
    levels = match_levels(scan, matched.orphan_rows, id_duplicate_rows)
    timers = matched.timers
    named = named_by_deletes(scan, own, timers)
    timers.state[named & (timers.state == PENDING)] = CANCELLED
    timers = timers.take(np.argsort(timers.ids, kind="stable"))
    pending = timers.state == PENDING
    # A foreign copy is not a copy of the id that its TS_ID names. If its own queue offset is not
    # the id of a timer either, that id is listed as delivered, so that nothing waits under it.
    superseded = np.setdiff1d(scan["queue_offset"][settled.foreign_rows], timers.ids)
    return Fold(
        store_id=own_id,
        store_ids=own_ids,
        ids_pending=timers.ids[pending],
        rows_pending=timers.rows[pending],
        offsets_pending=scan["log_offset"][timers.rows[pending]],
        ids_delivered=np.sort(np.concatenate([timers.ids[timers.state == DELIVERED], superseded])),
        ids_cancelled=timers.ids[timers.state == CANCELLED],
        next_id=next_id,
        duplicate_rows=np.sort(
            np.concatenate(
                [levels.timer_duplicate_rows, matched.duplicate_rows, levels.duplicate_rows]
            )
        ),
        orphan_rows=np.sort(levels.orphan_rows),
        delivered_though_cancelled=both + int(np.sum(matched.timers.state[named] == DELIVERED)),
        unusable_rows=np.flatnonzero(scan["kind"] == RecordKind.UNUSABLE),
        level_rows_pending=levels.pending_rows,
        level_places_done=levels.places_done,
        level_delivered_count=levels.delivered_count,
    )


def _next_id(scan: Scan, own: Mask) -> int:
    """Return the first id above all queue offsets of the timer topic and all own timer ids."""
    queued = np.isin(scan["kind"], (RecordKind.TIMER, RecordKind.DELETE, RecordKind.UNUSABLE))
    seen = np.concatenate([scan["queue_offset"][queued], scan["timer_id"][own]])
    return int(seen.max()) + 1 if len(seen) else 0
