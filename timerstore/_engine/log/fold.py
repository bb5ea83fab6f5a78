"""What one scan of the whole commit log says about every timer: waiting, handed or cancelled.

Used where the state side file is missing or does not fit, and once when a broker's store is
imported. Two kinds of evidence are folded, in this order:

1. *By id.* A record whose TS_ID names an own store id belongs to timer `q`, whatever else it says.
   The first delivery or delete record of a `q` in log order decides it. The copy that lives is the
   one with the highest roll count, of equal ones the last. A store id is own if the caller says so,
   or if a source vouches for it: its `q` is its own queue offset, and no source of that store id
   has a `q` above its queue offset. So does a copy that rolled or was moved by retention, where it
   lies where it says (TS_PLACE): its source may be gone. Other store ids count as no TS_ID at all;
   nor does a TS_ID that a client left on a message that it sent on (native/log/parse.h), also
   where a roll count was left beside it, or a broker rolled that message (`_settle_unsure`).
2. *By matching*, for what a broker wrote: groups of equal (identity, out_ms), read in log order.

    | record             | in its group                                                         |
    |--------------------|----------------------------------------------------------------------|
    | timer, no rolls    | one more message                                                     |
    | timer, rolls > 0   | a copy: evidence that an older copy went on. Only where none without |
    |                    | rolls is left (retention) do a group's copies stand for one message  |
    | delivered          | hands the earliest message not yet handed; where none is, it is      |
    |                    | doubled, or an orphan if nothing in the group precedes it            |

   Of n messages the n copies with most rolls live (of equal ones the last), and the most rolled
   is the earliest message. Every other copy is superseded: neither waiting nor handed, not listed.
   A message's id is the queue offset of its living copy.

   One message, rolled twice, its first roll doubled by a crash, then delivered and delivered again:

        queue offset    4     9     12    15    -          -
        record          t0    t1    t1    t2    delivered  delivered
        result: 15 is handed; 4, 9, 12 do not appear; the second delivery is doubled.

   A delivery that names an id for the second time, or one that no copy is left of, may be a
   broker's of a message that was sent on with our TS_ID: it hands a message of its group, if any.

*Imported messages that we went on with* carry our TS_ID on later copies while their source has
none: such a record claims the source at queue offset `q`, with the whole group around it. If the
claim is a delivery or a delete, that message is decided and leaves the matching. If it is only a
copy (rolled by us, or moved), the message stays in the matching with that copy as the living one.

*Delete records without a TS_ID* act as the ancestor's do: it reads a slot's delete records first,
then drops every message of that slot with the same key. So a delete cancels all messages with its
out_ms whose identity (topic + key) or bare identity (key, the form up to 5.3.1) is its value, also
one stored after it: the put check refuses deletes that are already due, so both lay in the slot
before it was read. What the log shows delivered stays handed. Only of our own messages (with
TS_ID) those stored after the delete are spared: while we run, no such delete is honoured, and a key
that a caller uses again must not be cancelled by a rebuild.

*Fixed levels* have no ids, but places: queue and queue offset in the level topic. What we delivered
names its source's place, and hands that source where the identity is the same: the first delivery
of a place does. All others, a broker's, are matched by (identity, delay_level) as above; so is one
that names a place for the second time, since a consumer's retry sends our mark on with the message.
A delivery that carries both TIMER_OUT_MS and DELAY, and that no timer explains or that names an id
for the second time, is taken as a level's.

Threads:  none; pure functions on arrays.
Holds:    ids_waiting, ids_handed, ids_cancelled are ascending and share no id. Nothing is dropped
          because it is odd: what does not fit is counted in the result.
Fails:    ValueError if the array is not SCAN_DTYPE or not in log order.
Source:   docs/exactly-once.md, docs/file-format.md.
Cost:     sorts, so O(n log n) time; beside the scan (96 bytes a record) about 130 bytes for each
          timer and delivery. Measured with 2 M rows: 240 MB, 1 s with ids, 2.5 s by matching.
          Identities are 64-bit hashes: among 10^8 keys two that differ collide with probability
          3e-4, and only if TIMER_OUT_MS is the same too does it matter.
Known:    two sends with equal key and TIMER_OUT_MS of which only the later one rolled (a clock that
          was set back) swap places: of two equal messages the less rolled copy lives.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.format.filler_record import RECORD_FIXED_BYTES
from timerstore._engine.log.multiset import (
    Group,
    Int64,
    Mask,
    Rows,
    find,
    grouped,
    numbered,
    rank,
    walk,
)

Scan = npt.NDArray[np.void]

SCAN_DTYPE: np.dtype[np.void] = np.dtype(
    [
        ("log_offset", np.int64),
        ("queue_offset", np.int64),
        ("store_ms", np.int64),
        ("due_ms", np.int64),
        ("out_ms", np.int64),
        ("timer_id", np.int64),
        ("identity", np.uint64),
        ("bare_identity", np.uint64),
        ("size", np.int32),
        ("kind", np.int32),
        ("store_id", np.uint32),
        ("roll_times", np.int32),
        ("delay_level", np.int32),
        ("queue_id", np.int32),
        ("topic_hash", np.int32),
        ("route", np.int32),
        ("vouches", np.int32),
    ],
    align=True,
)


class Kind(IntEnum):
    """What a scanned record is to the fold: enum ts_kind of native/api/recovery.h."""

    ORDINARY = 0
    TIMER = 1
    DELETE = 2
    DELIVERED = 3
    LEVEL = 4
    LEVEL_DELIVERED = 5
    UNUSABLE = 6
    LEVEL_UNUSABLE = 7


@dataclass(frozen=True, slots=True)
class Fold:
    """Result of `fold`. Rows are places in the scan; arrays ascend unless they follow another."""

    store_id: int | None
    """Own store id: the caller's, or that of the last source that vouches; None without any."""
    store_ids: tuple[int, ...]
    """Every store id that was taken as own."""
    ids_waiting: Int64
    rows_waiting: Rows
    """Row of each waiting id's living copy, in the order of ids_waiting."""
    offsets_waiting: Int64
    """Log offset of each waiting id's living copy, in the order of ids_waiting."""
    ids_handed: Int64
    ids_cancelled: Int64
    next_id: int
    """Above every queue offset and every own timer id that was seen."""
    doubled_rows: Rows
    """Deliveries beyond what their sources account for, levels included."""
    orphan_rows: Rows
    """Deliveries without any source before them in the log."""
    handed_though_cancelled: int
    """Messages that a delete record names and that were delivered all the same."""
    unusable_rows: Rows
    """Records in the timer topic that cannot be delivered (kind UNUSABLE)."""
    level_rows_waiting: Rows
    """Messages of fixed levels that are not delivered yet."""
    level_places_done: Int64
    """Places of level messages that need no delivery any more, ascending; unusable ones too."""
    level_handed_count: int

    @property
    def cancelled_count(self) -> int:
        """How many messages were cancelled."""
        return len(self.ids_cancelled)

    @property
    def doubled_count(self) -> int:
        """How many deliveries exceed their sources."""
        return len(self.doubled_rows)


def fold(scan: Scan, store_id: int | None = None, known_id: int | None = None) -> Fold:
    """Fold the records of a whole log. `store_id`: the only one that is own; `known_id`: one that
    is, as a side file still tells, whatever ids clients send on with it.
    """
    if scan.dtype != SCAN_DTYPE:
        raise ValueError(f"scan has dtype {scan.dtype}, wanted SCAN_DTYPE")
    if len(scan) > 1 and not bool(np.all(np.diff(scan["log_offset"]) > 0)):
        raise ValueError("scan is not in log order")
    own_ids, own_id = _own_store_ids(scan, store_id, known_id)
    own = _own_mask(scan, own_ids, own_id)
    next_id = _next_id(scan, own)
    settled = _settle_unsure(scan, own)
    if len(settled.foreign_rows):
        own, scan = settled.own, scan.copy()
        scan["timer_id"] = settled.timer_id
    families, by_id_doubled, both = _fold_families(scan, own)
    matched = _match_timers(scan, own, families, _maybe_sent_on(scan, own, families, by_id_doubled))
    by_id_doubled = np.setdiff1d(by_id_doubled, matched.sent_on_rows)
    levels = _match_levels(scan, matched.orphan_rows, by_id_doubled)
    timers = matched.timers
    named = _named_by_deletes(scan, own, timers)
    timers.state[named & (timers.state == _WAITING)] = _CANCELLED
    timers = timers.take(np.argsort(timers.ids, kind="stable"))
    waiting = timers.state == _WAITING
    # A copy that another id's TS_ID was left on is no copy of that id, whatever its state is.
    over = np.setdiff1d(scan["queue_offset"][settled.foreign_rows], timers.ids)
    return Fold(
        store_id=own_id,
        store_ids=own_ids,
        ids_waiting=timers.ids[waiting],
        rows_waiting=timers.rows[waiting],
        offsets_waiting=scan["log_offset"][timers.rows[waiting]],
        ids_handed=np.sort(np.concatenate([timers.ids[timers.state == _HANDED], over])),
        ids_cancelled=timers.ids[timers.state == _CANCELLED],
        next_id=next_id,
        doubled_rows=np.sort(
            np.concatenate([levels.timer_doubled_rows, matched.doubled_rows, levels.doubled_rows])
        ),
        orphan_rows=np.sort(levels.orphan_rows),
        handed_though_cancelled=both + int(np.sum(matched.timers.state[named] == _HANDED)),
        unusable_rows=np.flatnonzero(scan["kind"] == Kind.UNUSABLE),
        level_rows_waiting=levels.waiting_rows,
        level_places_done=levels.places_done,
        level_handed_count=levels.handed_count,
    )


_WAITING, _HANDED, _CANCELLED = 1, 2, 3
_IDS_AT_ONCE = 1 << 24  # states of so many are 4 MB


@dataclass(slots=True)
class _Timers:
    """One entry a timer."""

    ids: Int64
    rows: Rows
    """Living copy; -1 where only evidence is left in the log."""
    state: Int64
    since: Int64
    """Log offset of the first copy with an own id, else -1: older deletes by key spare it."""

    def take(self, places: Rows | Mask) -> "_Timers":
        """Some of them, in the order given."""
        return _Timers(self.ids[places], self.rows[places], self.state[places], self.since[places])


def _next_id(scan: Scan, own: Mask) -> int:
    """First id above everything that the timer queue and own ids have used."""
    queued = np.isin(scan["kind"], (Kind.TIMER, Kind.DELETE, Kind.UNUSABLE))
    seen = np.concatenate([scan["queue_offset"][queued], scan["timer_id"][own]])
    return int(seen.max()) + 1 if len(seen) else 0


def ids_most(scan: Scan) -> Int64:
    """The highest timer id that there can be at each record: an id is a place in the timer topic's
    queue, so as many records lie before it in the log.
    """
    most: Int64 = np.maximum(scan["log_offset"] // RECORD_FIXED_BYTES, _IDS_AT_ONCE)
    return most


def wild_places(scan: Scan) -> Mask:
    """Tell of records of the timer topic at a place of its queue that none can have: who folds them
    has memory for all ids up to it. A TS_ID that none can have had is no such damage: who sends a
    message to a broker may name any.
    """
    queued = np.isin(scan["kind"], (Kind.TIMER, Kind.DELETE, Kind.UNUSABLE))
    wild: Mask = queued & (scan["queue_offset"] > ids_most(scan))
    return wild


def bears_id_of(scan: Scan, store_id: int) -> Mask:
    """Tell of timers' records that name an id of this store, and are that timer's for certain."""
    return _own_mask(scan, (store_id,), store_id) & ~unsure(scan)


def foreign(scan: Scan, store_id: int) -> Mask:
    """Tell of timers' records that this store did not write, as they bear no id of it."""
    timers = np.isin(scan["kind"], (Kind.TIMER, Kind.DELETE, Kind.UNUSABLE, Kind.DELIVERED))
    others: Mask = timers & ~bears_id_of(scan, store_id)
    return others


def strangers_wrote(scan: Scan, store_id: int, *, is_clean: bool) -> bool:
    """Whether not all that lies behind a watermark is this store's. Behind a clean one nothing is:
    who opens a store of ours completes another before he writes.
    """
    return len(scan) > 0 if is_clean else bool(foreign(scan, store_id).any())


# --- by id ----------------------------------------------------------------------------------------


def _own_store_ids(
    scan: Scan, store_id: int | None, known_id: int | None
) -> tuple[tuple[int, ...], int | None]:
    """Own store ids, and the one that is used from here on."""
    if store_id is not None:
        return (store_id,), store_id
    sources = (scan["kind"] == Kind.TIMER) & (scan["timer_id"] >= 0)
    vouching = scan["store_id"][sources & _vouches(scan)]
    denied = scan["store_id"][sources & (scan["timer_id"] > scan["queue_offset"])]
    vouching = vouching[~np.isin(vouching, denied[denied != (known_id or 0)])]
    if not len(vouching):
        return (), None
    return tuple(int(each) for each in np.unique(vouching)), int(vouching[-1])


def _vouches(scan: Scan) -> Mask:
    """Sources of this store, and copies that rolled or were moved: they say where they lie."""
    mask: Mask = (scan["timer_id"] == scan["queue_offset"]) | (scan["vouches"] != 0)
    return mask


def _own_mask(scan: Scan, own_ids: tuple[int, ...], own_id: int | None) -> Mask:
    """Records that belong to a timer by their TS_ID."""
    own: Mask = np.isin(scan["kind"], (Kind.TIMER, Kind.DELETE, Kind.DELIVERED))
    # A copy's id lies at or before its own place: one beyond is of what a client sent on.
    own &= (scan["kind"] != Kind.TIMER) | (scan["timer_id"] <= scan["queue_offset"])
    own &= scan["timer_id"] <= ids_most(scan)  # else a client's, too: none of ours can have had it
    own &= (scan["timer_id"] >= 0) & np.isin(scan["store_id"], np.array(own_ids, np.uint32))
    if len(own_ids) > 1:
        # Several store ids vouch (a side file was lost in between, or a stranger fits by chance):
        # `q` belongs to the one whose source has it; other records with that `q` are strangers.
        vouching = own & (scan["kind"] == Kind.TIMER) & _vouches(scan)
        source = find(scan["timer_id"], scan["timer_id"][vouching])
        owner = scan["store_id"][vouching]
        own &= (source < 0) | (owner[source] == scan["store_id"]) | (scan["store_id"] == own_id)
    return own


class _Unsure(NamedTuple):
    """What became of the records that `_settle_unsure` looked at."""

    own: Mask
    """Records that belong to a timer by their TS_ID."""
    timer_id: Int64
    """Of each record."""
    foreign_rows: Rows
    """Those whose TS_ID is another message's."""


def unsure(scan: Scan) -> Mask:
    """Tell of copies whose TS_ID may be left of another message: they rolled and do not vouch, so a
    broker rolled them, or a client sent them on with a roll count left, or both.
    """
    rolled = (scan["kind"] == Kind.TIMER) & (scan["timer_id"] >= 0) & (scan["roll_times"] > 0)
    mask: Mask = rolled & ~_vouches(scan)
    return mask


def _settle_unsure(scan: Scan, own: Mask) -> _Unsure:
    """Whose the unsure copies are; `q` is the id that one names, its like are of its key and time.

    | what else the log has                                    | the copy is                   |
    |----------------------------------------------------------|-------------------------------|
    | a source or sure copy of q, or its delete, that is alike | q's                           |
    | a source without an id that is alike                     | foreign: matching tells       |
    | what names another id and is alike                       | that id's                     |
    | of q a source or a sure copy, or a delivery, none alike  | foreign                       |
    | nothing                                                  | q's, as far as anybody knows  |
    """
    timer_id, kind = scan["timer_id"], scan["kind"]
    timer = kind == Kind.TIMER
    rows = np.flatnonzero(own & unsure(scan))
    if not len(rows):
        return _Unsure(own, timer_id, rows)
    source = timer & ~own
    told = np.flatnonzero((own & ~unsure(scan)) | source)
    named = np.where(source, scan["queue_offset"], timer_id)
    group = grouped(scan, np.sort(np.concatenate([rows, told])), "out_ms", "identity")
    number = np.empty(len(scan), np.intp)
    number[group.rows] = group.number
    _, place = numbered(named[group.rows])
    code = np.empty(len(scan), np.int64)
    code[group.rows] = place * group.group_count + group.number
    rows = rows[~np.isin(code[rows], code[told[kind[told] != Kind.DELIVERED]])]
    if not len(rows):
        return _Unsure(own, timer_id, rows)

    original = np.zeros(group.group_count, bool)
    original[number[np.flatnonzero(source & (scan["roll_times"] == 0))]] = True
    told = told[np.isin(named[told], timer_id[rows]) | np.isin(number[told], number[rows])]
    known = set(named[told[timer[told]]].tolist())
    delivered = told[kind[told] == Kind.DELIVERED]
    handed, handed_alike = set(named[delivered].tolist()), set(code[delivered].tolist())
    alike: dict[int, set[int]] = {}  # ids that are named, by group
    for row in told[~source[told]].tolist():
        alike.setdefault(int(number[row]), set()).add(int(named[row]))
    own, timer_id, foreign_rows = own.copy(), timer_id.copy(), []
    for row in rows.tolist():
        q, at = int(timer_id[row]), int(scan["queue_offset"][row])
        others = alike.get(int(number[row]), set()) - {q}
        has_original = original[number[row]]
        if others and not has_original:
            timer_id[row] = at if at in others else min(others)
        elif has_original or q in known or (q in handed and code[row] not in handed_alike):
            own[row] = False
        else:
            continue
        foreign_rows.append(row)
    return _Unsure(own, timer_id, np.array(foreign_rows, np.intp))


def _fold_families(scan: Scan, own: Mask) -> tuple[_Timers, Rows, int]:
    """Timers known by id, ascending; rows of doubled deliveries; how many are cancelled and handed.

    Assignments to repeated places run backward or forward on purpose: the last one stays.
    """
    rows = np.flatnonzero(own)
    timer_id, kind = scan["timer_id"][rows], scan["kind"][rows]
    ids, place = numbered(timer_id)

    living = np.full(len(ids), -1, np.intp)
    since = np.full(len(ids), -1, np.int64)
    copies = np.flatnonzero(kind == Kind.TIMER)
    since[place[copies[::-1]]] = scan["log_offset"][rows[copies[::-1]]]
    ranked = copies[np.argsort(scan["roll_times"][rows[copies]], kind="stable")]
    living[place[ranked]] = rows[ranked]

    state = np.full(len(ids), _WAITING, np.int64)
    evidence = np.flatnonzero(kind != Kind.TIMER)[::-1]
    state[place[evidence]] = np.where(kind[evidence] == Kind.DELIVERED, _HANDED, _CANCELLED)

    deliveries = np.flatnonzero(kind == Kind.DELIVERED)
    delivered, once = np.unique(place[deliveries], return_index=True)
    doubled = np.delete(rows[deliveries], once)
    both = len(np.intersect1d(delivered, place[kind == Kind.DELETE]))
    return _Timers(ids, living, state, since), doubled, both


def _maybe_sent_on(scan: Scan, own: Mask, families: _Timers, doubled_rows: Rows) -> Mask:
    """Deliveries by id that may be of a message that was sent on with the TS_ID of another."""
    maybe = np.zeros(len(scan), bool)
    deliveries = np.flatnonzero(own & (scan["kind"] == Kind.DELIVERED))
    family = find(scan["timer_id"][deliveries], families.ids)
    maybe[deliveries[families.rows[family] < 0]] = True
    maybe[doubled_rows] = True
    return maybe


# --- by matching ----------------------------------------------------------------------------------


class _Matched(NamedTuple):
    timers: _Timers
    """Those known by id and those of foreign sources together."""
    doubled_rows: Rows
    orphan_rows: Rows
    sent_on_rows: Rows
    """Deliveries by id that hand a foreign source."""


def _match_timers(scan: Scan, own: Mask, families: _Timers, maybe: Mask) -> _Matched:
    """Match foreign timers with the deliveries that carry no own id, and those that `maybe` do."""
    kind = scan["kind"]
    is_either = (kind == Kind.TIMER) | (kind == Kind.DELIVERED)
    group = grouped(scan, np.flatnonzero(is_either & (~own | maybe)), "out_ms", "identity")
    timer = kind[group.rows] == Kind.TIMER
    original = _originals(scan, group, timer)
    # Message i is the i-th original and the i-th living copy: a group has as many of each.
    message_group = group.number[original]
    living = _living(scan, group, timer, message_group)
    messages = _Timers(
        ids=scan["queue_offset"][living],
        rows=living,
        state=np.full(len(living), _WAITING, np.int64),
        since=np.full(len(living), -1, np.int64),
    )
    claimed = _claim(
        scan,
        group=group,
        timer=timer,
        families=families,
        messages=messages,
        message_group=message_group,
    )

    undecided = np.flatnonzero(messages.state == _WAITING)
    gives = np.zeros(len(group.rows), bool)
    gives[np.flatnonzero(original)[undecided]] = True
    by_id = maybe[group.rows]
    takes = ~timer
    takes[by_id] = ~np.isin(scan["timer_id"][group.rows[by_id]], families.ids[claimed])
    found = walk(group, gives, takes, timer)
    open_group = message_group[undecided]
    messages.state[undecided[rank(open_group) < found.handed[open_group]]] = _HANDED

    rest = families.take(~claimed)
    together = _Timers(
        ids=np.concatenate([rest.ids, messages.ids]),
        rows=np.concatenate([rest.rows, messages.rows]),
        state=np.concatenate([rest.state, messages.state]),
        since=np.concatenate([rest.since, messages.since]),
    )
    return _Matched(
        together,
        group.rows[found.doubled & ~by_id],
        group.rows[found.orphan & ~by_id],
        group.rows[by_id & takes & ~found.doubled & ~found.orphan],
    )


def _originals(scan: Scan, group: Group, timer: Mask) -> Mask:
    """One row for each message: roll_times 0, or the first copy where no such is left."""
    original: Mask = timer & (scan["roll_times"][group.rows] == 0)
    missing = np.bincount(group.number[original], minlength=group.group_count) == 0
    copies = np.flatnonzero(timer & missing[group.number])
    _, first = np.unique(group.number[copies], return_index=True)
    original[copies[first]] = True
    return original


def _living(scan: Scan, group: Group, timer: Mask, message_group: Rows) -> Rows:
    """Of each group as many copies as it has messages, by rolls and then age, most first."""
    rows, number = group.rows[timer], group.number[timer]
    rolls = scan["roll_times"][rows].astype(np.int64)
    latest = np.lexsort((-rows, -rolls, number))
    wanted = np.bincount(message_group, minlength=group.group_count)
    chosen = latest[rank(number[latest]) < wanted[number[latest]]]
    earliest = np.lexsort((rows[chosen], -rolls[chosen], number[chosen]))
    living: Rows = rows[chosen[earliest]]
    return living


def _claim(
    scan: Scan,
    *,
    group: Group,
    timer: Mask,
    families: _Timers,
    messages: _Timers,
    message_group: Rows,
) -> Mask:
    """Give messages to the families whose `q` is a foreign source's queue offset.

    Changes `messages`; returns which families are in there now. Where the named source does not
    live (a broker rolled it later), its group's first free message is taken; a family that finds
    none free stays on its own.
    """
    rows, number = group.rows[timer], group.number[timer]
    at = find(families.ids, scan["queue_offset"][rows])
    claims = np.flatnonzero(at >= 0)
    place = find(rows[at[claims]], messages.rows)
    taken = np.zeros(len(messages.ids), bool)
    taken[place[place >= 0]] = True
    rest = np.flatnonzero(place < 0)
    for claim in rest.tolist():  # only after a broker's visit to an imported store: few
        inside = number[at[claims[claim]]]
        start, stop = np.searchsorted(message_group, [inside, inside + 1])
        free = start + np.flatnonzero(~taken[start:stop])
        if len(free):
            place[claim] = free[0]
            taken[free[0]] = True
    claimed = np.zeros(len(families.ids), bool)
    claimed[claims[place >= 0]] = True
    winners, messages_won = claims[place >= 0], place[place >= 0]
    messages.ids[messages_won] = families.ids[winners]
    messages.rows[messages_won] = families.rows[winners]
    messages.state[messages_won] = families.state[winners]
    messages.since[messages_won] = families.since[winners]
    return claimed


def _named_by_deletes(scan: Scan, own: Mask, timers: _Timers) -> Mask:
    """Which timers a delete record without an own id names, by key and TIMER_OUT_MS."""
    deletes = scan[(scan["kind"] == Kind.DELETE) & ~own]
    named = np.zeros(len(timers.ids), bool)
    there = np.flatnonzero(timers.rows >= 0)
    if not len(deletes) or not len(there):
        return named
    values, outs = np.unique(deletes["identity"]), np.unique(deletes["out_ms"])
    codes = np.searchsorted(values, deletes["identity"]) * len(outs)
    codes += np.searchsorted(outs, deletes["out_ms"])
    known, last = np.unique(codes[::-1], return_index=True)
    latest = deletes["log_offset"][::-1][last]
    rows = timers.rows[there]
    out = np.minimum(np.searchsorted(outs, scan["out_ms"][rows]), len(outs) - 1)
    same_out = outs[out] == scan["out_ms"][rows]
    for name in ("identity", "bare_identity"):
        value = np.minimum(np.searchsorted(values, scan[name][rows]), len(values) - 1)
        code = value * len(outs) + out
        at = np.minimum(np.searchsorted(known, code), len(known) - 1)
        hit = same_out & (values[value] == scan[name][rows]) & (known[at] == code)
        named[there[hit & (latest[at] > timers.since[there])]] = True
    return named


# --- fixed levels ---------------------------------------------------------------------------------


PLACE_OFFSET_BITS = 48  # native/format/level_mark.h


def places_of(records: Scan) -> Int64:
    """Give the places of messages of the level topic: queue and queue offset in one number."""
    places: Int64 = records["queue_id"].astype(np.int64) << PLACE_OFFSET_BITS
    places |= records["queue_offset"]
    return places


def level_places(records: Scan, store_id: int) -> Int64:
    """Give the places that deliveries of this store name; for what no one else wrote."""
    named = (records["kind"] == Kind.LEVEL_DELIVERED) & (records["timer_id"] >= 0)
    places: Int64 = records["timer_id"][named & (records["store_id"] == store_id)]
    return places


class _Levels(NamedTuple):
    waiting_rows: Rows
    handed_count: int
    places_done: Int64
    doubled_rows: Rows
    orphan_rows: Rows
    timer_doubled_rows: Rows


def _match_levels(scan: Scan, orphan_rows: Rows, timer_doubled_rows: Rows) -> _Levels:
    """Which level messages are out: by the place that a delivery names, else by matching.

    What timers cannot explain, `orphan_rows` and `timer_doubled_rows`, may be among the deliveries.
    """
    kind = scan["kind"]
    sources = np.flatnonzero(kind == Kind.LEVEL)
    deliveries = np.flatnonzero(kind == Kind.LEVEL_DELIVERED)
    named, by_place = _named_by_place(scan, sources, deliveries)
    strangers = [rows[scan["delay_level"][rows] > 0] for rows in (orphan_rows, timer_doubled_rows)]
    rows = np.concatenate([sources, deliveries[~by_place], *strangers])
    group = grouped(scan, np.sort(rows), "delay_level", "identity")
    source = kind[group.rows] == Kind.LEVEL
    gives = source.copy()
    gives[source] = ~np.isin(group.rows[source], sources[named])
    found = walk(group, gives, ~source, source)
    given_group = group.number[gives]
    handed = rank(given_group) < found.handed[given_group]
    waiting = np.sort(group.rows[gives][~handed])
    done = np.concatenate(
        [np.setdiff1d(sources, waiting), np.flatnonzero(kind == Kind.LEVEL_UNUSABLE)]
    )
    odd = np.concatenate([group.rows[found.doubled], group.rows[found.orphan]])
    explained = np.setdiff1d(strangers[1], odd)
    return _Levels(
        waiting_rows=waiting,
        handed_count=len(sources) - len(waiting),
        places_done=np.sort(places_of(scan[done])),
        doubled_rows=np.setdiff1d(group.rows[found.doubled], strangers[1]),
        orphan_rows=np.concatenate(
            [
                orphan_rows[scan["delay_level"][orphan_rows] <= 0],
                np.setdiff1d(group.rows[found.orphan], strangers[1]),
            ]
        ),
        timer_doubled_rows=np.setdiff1d(timer_doubled_rows, explained),
    )


def _named_by_place(scan: Scan, sources: Rows, deliveries: Rows) -> tuple[Mask, Mask]:
    """Which sources a delivery names, and which deliveries do."""
    named = np.zeros(len(sources), bool)
    by_place = np.zeros(len(deliveries), bool)
    if not len(sources) or not len(deliveries):
        return named, by_place
    at = find(scan["timer_id"][deliveries], places_of(scan[sources]))
    there = np.flatnonzero(at >= 0)
    behind = deliveries[there] > sources[at[there]]
    same = scan["identity"][deliveries[there]] == scan["identity"][sources[at[there]]]
    there = there[behind & same]
    _, first = np.unique(at[there], return_index=True)
    by_place[there[first]] = True
    named[at[there[first]]] = True
    return named, by_place
