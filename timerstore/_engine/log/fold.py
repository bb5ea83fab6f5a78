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
   count or a broker rolled it (`settle_uncertain`).
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
from typing import NamedTuple

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.log.fold_matching import (
    CANCELLED,
    DELIVERED,
    PENDING,
    fold_by_id,
    match_levels,
    match_timers,
    maybe_sent_on,
    named_by_deletes,
)
from timerstore._engine.log.scanned_records import (
    IN_TIMER_TOPIC,
    SCAN_DTYPE,
    Int64,
    Mask,
    Rows,
    Scan,
    find,
    grouped,
    numbered,
    timer_id_limits,
)

# --- fold ownership ---
# Decide which records of a scan belong to timers of this store by their TS_ID.
#
# TS_ID holds a store id and a timer id. A broker keeps it on records that it rolls or delivers, and
# a client can send a received message to another topic with it. So a TS_ID alone does not prove
# whose record it is. fold.py states the rules.
#
# A record *vouches* for its store id if it says where it lies: a source whose timer id is its own
# queue offset, or a rolled or moved copy whose TS_PLACE is its log offset.


def is_own(scan: Scan, store_id: int) -> Mask:
    """Mark timer records that name an id of this store and certainly belong to that timer."""
    return own_mask(scan, (store_id,), store_id) & ~is_uncertain(scan)


def has_foreign_records(scan: Scan, store_id: int, *, is_clean: bool) -> bool:
    """Return whether records after a watermark were written by another store or a broker.

    These are timer records that do not certainly belong to this store. After a clean watermark it
    is any record: this engine completes another checkpoint before it appends to a store that was
    closed.
    """
    if is_clean:
        return len(scan) > 0
    is_timer = np.isin(scan["kind"], (*IN_TIMER_TOPIC, lib.TS_KIND_DELIVERED))
    return bool((is_timer & ~is_own(scan, store_id)).any())


def own_store_ids(
    scan: Scan, store_id: int | None, known_id: int | None
) -> tuple[tuple[int, ...], int | None]:
    """Return all own store ids, and the one that new records will use.

    `store_id`: if given, the only own id. `known_id`: an id that is own in any case.
    """
    if store_id is not None:
        return (store_id,), store_id
    sources = (scan["kind"] == lib.TS_KIND_TIMER) & (scan["timer_id"] >= 0)
    vouching = scan["store_id"][sources & _vouches(scan)]
    denied = scan["store_id"][sources & (scan["timer_id"] > scan["queue_offset"])]
    vouching = vouching[~np.isin(vouching, denied[denied != (known_id or 0)])]
    if not len(vouching):
        return (), None
    return tuple(int(each) for each in np.unique(vouching)), int(vouching[-1])


def _vouches(scan: Scan) -> Mask:
    """Mark records that vouch for their store id."""
    mask: Mask = (scan["timer_id"] == scan["queue_offset"]) | (scan["vouches"] != 0)
    return mask


def own_mask(scan: Scan, own_ids: tuple[int, ...], own_id: int | None) -> Mask:
    """Mark records that belong to a timer by their TS_ID."""
    own: Mask = np.isin(
        scan["kind"], (lib.TS_KIND_TIMER, lib.TS_KIND_DELETE, lib.TS_KIND_DELIVERED)
    )
    # A copy's id is at most its own queue offset. A higher id was sent on by a client, and so was
    # an id that is not possible at this log offset.
    own &= (scan["kind"] != lib.TS_KIND_TIMER) | (scan["timer_id"] <= scan["queue_offset"])
    own &= scan["timer_id"] <= timer_id_limits(scan)
    own &= (scan["timer_id"] >= 0) & np.isin(scan["store_id"], np.array(own_ids, np.uint32))
    if len(own_ids) > 1:
        # Records vouch for several store ids: the side file with the id was lost in between, or a
        # foreign record fits by chance. A timer id belongs to the store id of its source. Other
        # records with that timer id are foreign.
        vouching = own & (scan["kind"] == lib.TS_KIND_TIMER) & _vouches(scan)
        source = find(scan["timer_id"], scan["timer_id"][vouching])
        owner = scan["store_id"][vouching]
        own &= (source < 0) | (owner[source] == scan["store_id"]) | (scan["store_id"] == own_id)
    return own


class Settled(NamedTuple):
    """The result of `settle_uncertain`."""

    own: Mask
    """Records that belong to a timer by their TS_ID."""
    timer_id: Int64
    """The timer id of each record, corrected for uncertain copies."""
    foreign_rows: Rows
    """Uncertain copies whose TS_ID is that of another message."""


def is_uncertain(scan: Scan) -> Mask:
    """Mark copies whose TS_ID may be that of another message.

    They have rolled and do not vouch. So a broker rolled them, or a client sent them on with a roll
    count, or both.
    """
    rolled = (
        (scan["kind"] == lib.TS_KIND_TIMER) & (scan["timer_id"] >= 0) & (scan["roll_times"] > 0)
    )
    mask: Mask = rolled & ~_vouches(scan)
    return mask


def settle_uncertain(scan: Scan, own: Mask) -> Settled:
    """Decide to which timer each uncertain copy belongs.

    `q` is the timer id that the copy names. A record is *similar* if it has the same key and the
    same TIMER_OUT_MS. The first row that applies decides:

    | another record in the log                                     | the copy belongs to        |
    |---------------------------------------------------------------|----------------------------|
    | a similar source, certain copy or delete record of q          | q                          |
    | a similar source without an id                                | no id; matching decides    |
    | a similar record that names another id                        | that id                    |
    | a source, certain copy or delivery of q that is not similar   | no id; matching decides    |
    | none of these                                                 | q                          |
    """
    timer_id, kind = scan["timer_id"], scan["kind"]
    timer = kind == lib.TS_KIND_TIMER
    rows = np.flatnonzero(own & is_uncertain(scan))
    if not len(rows):
        return Settled(own, timer_id, rows)
    source = timer & ~own
    certain = np.flatnonzero((own & ~is_uncertain(scan)) | source)
    named = np.where(source, scan["queue_offset"], timer_id)
    group = grouped(scan, np.sort(np.concatenate([rows, certain])), "out_ms", "identity")
    number = np.empty(len(scan), np.intp)
    number[group.rows] = group.number
    _, place = numbered(named[group.rows])
    code = np.empty(len(scan), np.int64)
    code[group.rows] = place * group.group_count + group.number
    rows = rows[~np.isin(code[rows], code[certain[kind[certain] != lib.TS_KIND_DELIVERED]])]
    if not len(rows):
        return Settled(own, timer_id, rows)

    original = np.zeros(group.group_count, bool)
    original[number[np.flatnonzero(source & (scan["roll_times"] == 0))]] = True
    certain = certain[
        np.isin(named[certain], timer_id[rows]) | np.isin(number[certain], number[rows])
    ]
    known = set(named[certain[timer[certain]]].tolist())
    deliveries = certain[kind[certain] == lib.TS_KIND_DELIVERED]
    delivered, delivered_similar = set(named[deliveries].tolist()), set(code[deliveries].tolist())
    similar: dict[int, set[int]] = {}  # ids that are named, by group
    for row in certain[~source[certain]].tolist():
        similar.setdefault(int(number[row]), set()).add(int(named[row]))
    own, timer_id, foreign_rows = own.copy(), timer_id.copy(), []
    for row in rows.tolist():
        q, at = int(timer_id[row]), int(scan["queue_offset"][row])
        others = similar.get(int(number[row]), set()) - {q}
        has_original = original[number[row]]
        if others and not has_original:
            timer_id[row] = at if at in others else min(others)
        elif has_original or q in known or (q in delivered and code[row] not in delivered_similar):
            own[row] = False
        else:
            continue
        foreign_rows.append(row)
    return Settled(own, timer_id, np.array(foreign_rows, np.intp))


# --- fold ---


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
    queued = np.isin(scan["kind"], IN_TIMER_TOPIC)
    seen = np.concatenate([scan["queue_offset"][queued], scan["timer_id"][own]])
    next_id = int(seen.max(initial=-1)) + 1
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
        unusable_rows=np.flatnonzero(scan["kind"] == lib.TS_KIND_UNUSABLE),
        level_rows_pending=levels.pending_rows,
        level_places_done=levels.places_done,
    )
