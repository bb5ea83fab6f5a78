"""Decide which records of a scan belong to timers of this store by their TS_ID.

TS_ID holds a store id and a timer id. A broker keeps it on records that it rolls or delivers, and a
client can send a received message to another topic with it. So a TS_ID alone does not prove whose
record it is. fold.py states the rules.

A record *vouches* for its store id if it says where it lies: a source whose timer id is its own
queue offset, or a rolled or moved copy whose TS_PLACE is its log offset.
"""

from typing import NamedTuple

import numpy as np

from timerstore._engine.log.multiset import Int64, Mask, Rows, find, grouped, numbered
from timerstore._engine.log.scanned_records import RecordKind, Scan, timer_id_limits


def is_own(scan: Scan, store_id: int) -> Mask:
    """Mark timer records that name an id of this store and certainly belong to that timer."""
    return own_mask(scan, (store_id,), store_id) & ~is_uncertain(scan)


def is_foreign(scan: Scan, store_id: int) -> Mask:
    """Mark timer records that do not certainly belong to this store."""
    timers = np.isin(
        scan["kind"],
        (RecordKind.TIMER, RecordKind.DELETE, RecordKind.UNUSABLE, RecordKind.DELIVERED),
    )
    others: Mask = timers & ~is_own(scan, store_id)
    return others


def has_foreign_records(scan: Scan, store_id: int, *, is_clean: bool) -> bool:
    """Return whether records after a watermark were written by another store or a broker.

    After a clean watermark that is any record: this engine completes another checkpoint before it
    appends to a store that was closed.
    """
    return len(scan) > 0 if is_clean else bool(is_foreign(scan, store_id).any())


def own_store_ids(
    scan: Scan, store_id: int | None, known_id: int | None
) -> tuple[tuple[int, ...], int | None]:
    """Return all own store ids, and the one that new records will use.

    `store_id`: if given, the only own id. `known_id`: an id that is own in any case.
    """
    if store_id is not None:
        return (store_id,), store_id
    sources = (scan["kind"] == RecordKind.TIMER) & (scan["timer_id"] >= 0)
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
    own: Mask = np.isin(scan["kind"], (RecordKind.TIMER, RecordKind.DELETE, RecordKind.DELIVERED))
    # A copy's id is at most its own queue offset. A higher id was sent on by a client, and so was
    # an id that is not possible at this log offset.
    own &= (scan["kind"] != RecordKind.TIMER) | (scan["timer_id"] <= scan["queue_offset"])
    own &= scan["timer_id"] <= timer_id_limits(scan)
    own &= (scan["timer_id"] >= 0) & np.isin(scan["store_id"], np.array(own_ids, np.uint32))
    if len(own_ids) > 1:
        # Records vouch for several store ids: the side file with the id was lost in between, or a
        # foreign record fits by chance. A timer id belongs to the store id of its source. Other
        # records with that timer id are foreign.
        vouching = own & (scan["kind"] == RecordKind.TIMER) & _vouches(scan)
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
    rolled = (scan["kind"] == RecordKind.TIMER) & (scan["timer_id"] >= 0) & (scan["roll_times"] > 0)
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
    timer = kind == RecordKind.TIMER
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
    rows = rows[~np.isin(code[rows], code[certain[kind[certain] != RecordKind.DELIVERED]])]
    if not len(rows):
        return Settled(own, timer_id, rows)

    original = np.zeros(group.group_count, bool)
    original[number[np.flatnonzero(source & (scan["roll_times"] == 0))]] = True
    certain = certain[
        np.isin(named[certain], timer_id[rows]) | np.isin(number[certain], number[rows])
    ]
    known = set(named[certain[timer[certain]]].tolist())
    deliveries = certain[kind[certain] == RecordKind.DELIVERED]
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
