"""Match timers of a broker with deliveries, by content. fold.py states the rules."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.log.scanned_records import (
    Int64,
    Mask,
    MultisetGroup,
    Rows,
    Scan,
    find,
    grouped,
    match_in_order,
    numbered,
    places_of,
    rank,
)

# --- fold by id ---
# Fold the records that name a timer of this store by its id. fold.py states the rules.


PENDING, DELIVERED, CANCELLED = 1, 2, 3


@dataclass(slots=True)
class Timers:
    """Timers as columns, with one entry for each timer."""

    ids: Int64
    rows: Rows
    """Row of the current copy; -1 if the log has only deliveries or deletes of the timer."""
    state: Int64
    """PENDING, DELIVERED or CANCELLED."""
    since: Int64
    """Log offset of the first copy with an own id, else -1. Older deletes by key do not apply."""

    def take(self, places: Rows | Mask) -> "Timers":
        """Return the timers at these places, in their order."""
        return Timers(self.ids[places], self.rows[places], self.state[places], self.since[places])


def fold_by_id(scan: Scan, own: Mask) -> tuple[Timers, Rows, int]:
    """Return timers by ascending id, rows of duplicate deliveries, and a count.

    The count is that of timers which have both a delivery and a delete record.
    """
    # The order of assignments to repeated places is intended: the last assignment counts.
    rows = np.flatnonzero(own)
    timer_id, kind = scan["timer_id"][rows], scan["kind"][rows]
    ids, place = numbered(timer_id)

    current = np.full(len(ids), -1, np.intp)
    since = np.full(len(ids), -1, np.int64)
    copies = np.flatnonzero(kind == lib.TS_KIND_TIMER)
    since[place[copies[::-1]]] = scan["log_offset"][rows[copies[::-1]]]
    ranked = copies[np.argsort(scan["roll_times"][rows[copies]], kind="stable")]
    current[place[ranked]] = rows[ranked]

    state = np.full(len(ids), PENDING, np.int64)
    evidence = np.flatnonzero(kind != lib.TS_KIND_TIMER)[::-1]
    state[place[evidence]] = np.where(kind[evidence] == lib.TS_KIND_DELIVERED, DELIVERED, CANCELLED)

    deliveries = np.flatnonzero(kind == lib.TS_KIND_DELIVERED)
    delivered, once = np.unique(place[deliveries], return_index=True)
    duplicates = np.delete(rows[deliveries], once)
    both = len(np.intersect1d(delivered, place[kind == lib.TS_KIND_DELETE]))
    return Timers(ids, current, state, since), duplicates, both


def maybe_sent_on(scan: Scan, own: Mask, timers_by_id: Timers, duplicate_rows: Rows) -> Mask:
    """Mark deliveries by id that may belong to a message sent on with another message's TS_ID."""
    maybe = np.zeros(len(scan), bool)
    deliveries = np.flatnonzero(own & (scan["kind"] == lib.TS_KIND_DELIVERED))
    timer = find(scan["timer_id"][deliveries], timers_by_id.ids)
    maybe[deliveries[timers_by_id.rows[timer] < 0]] = True
    maybe[duplicate_rows] = True
    return maybe


# --- fold by matching ---


class MatchedTimers(NamedTuple):
    """The result of `match_timers`."""

    timers: Timers
    """All timers: those known by id, and those of foreign sources."""
    duplicate_rows: Rows
    orphan_rows: Rows
    sent_on_rows: Rows
    """Deliveries by id that deliver a foreign source."""


def match_timers(scan: Scan, own: Mask, timers_by_id: Timers, maybe: Mask) -> MatchedTimers:
    """Match foreign timers with deliveries that carry no own id.

    `maybe`: deliveries by id that may belong to a foreign timer; they take part too.
    """
    kind = scan["kind"]
    is_either = (kind == lib.TS_KIND_TIMER) | (kind == lib.TS_KIND_DELIVERED)
    group = grouped(scan, np.flatnonzero(is_either & (~own | maybe)), "out_ms", "identity")
    timer = kind[group.rows] == lib.TS_KIND_TIMER
    original = _originals(scan, group, timer)
    # Message i is the i-th original and has the i-th current copy: a group has as many of each.
    message_group = group.number[original]
    current = _current_copies(scan, group, timer, message_group)
    messages = Timers(
        ids=scan["queue_offset"][current],
        rows=current,
        state=np.full(len(current), PENDING, np.int64),
        since=np.full(len(current), -1, np.int64),
    )
    claimed = _claim(
        scan,
        group=group,
        timer=timer,
        timers_by_id=timers_by_id,
        messages=messages,
        message_group=message_group,
    )

    undecided = np.flatnonzero(messages.state == PENDING)
    gives = np.zeros(len(group.rows), bool)
    gives[np.flatnonzero(original)[undecided]] = True
    by_id = maybe[group.rows]
    takes = ~timer
    takes[by_id] = ~np.isin(scan["timer_id"][group.rows[by_id]], timers_by_id.ids[claimed])
    found = match_in_order(group, gives, takes, timer)
    open_group = message_group[undecided]
    messages.state[undecided[rank(open_group) < found.delivered[open_group]]] = DELIVERED

    rest = timers_by_id.take(~claimed)
    all_timers = Timers(
        ids=np.concatenate([rest.ids, messages.ids]),
        rows=np.concatenate([rest.rows, messages.rows]),
        state=np.concatenate([rest.state, messages.state]),
        since=np.concatenate([rest.since, messages.since]),
    )
    return MatchedTimers(
        all_timers,
        group.rows[found.duplicate & ~by_id],
        group.rows[found.orphan & ~by_id],
        group.rows[by_id & takes & ~found.duplicate & ~found.orphan],
    )


def _originals(scan: Scan, group: MultisetGroup, timer: Mask) -> Mask:
    """Mark one row for each message: those with roll_times 0, else the first copy of the group."""
    original: Mask = timer & (scan["roll_times"][group.rows] == 0)
    missing = np.bincount(group.number[original], minlength=group.group_count) == 0
    copies = np.flatnonzero(timer & missing[group.number])
    _, first = np.unique(group.number[copies], return_index=True)
    original[copies[first]] = True
    return original


def _current_copies(scan: Scan, group: MultisetGroup, timer: Mask, message_group: Rows) -> Rows:
    """Return as many copies of each group as it has messages: those with the highest roll counts.

    In a group they are ordered by roll count, highest first, then by age, oldest first.
    """
    rows, number = group.rows[timer], group.number[timer]
    rolls = scan["roll_times"][rows].astype(np.int64)
    latest = np.lexsort((-rows, -rolls, number))
    needed = np.bincount(message_group, minlength=group.group_count)
    chosen = latest[rank(number[latest]) < needed[number[latest]]]
    earliest = np.lexsort((rows[chosen], -rolls[chosen], number[chosen]))
    current: Rows = rows[chosen[earliest]]
    return current


def _claim(
    scan: Scan,
    *,
    group: MultisetGroup,
    timer: Mask,
    timers_by_id: Timers,
    messages: Timers,
    message_group: Rows,
) -> Mask:
    """Assign messages to the timers by id whose id is the queue offset of a foreign source.

    Changes `messages`, and marks the timers by id that were assigned. If the named source is not a
    current copy (a broker rolled it later), the first free message of its group is assigned. A
    timer without a free message stays separate.
    """
    rows, number = group.rows[timer], group.number[timer]
    at = find(timers_by_id.ids, scan["queue_offset"][rows])
    claims = np.flatnonzero(at >= 0)
    place = find(rows[at[claims]], messages.rows)
    taken = np.zeros(len(messages.ids), bool)
    taken[place[place >= 0]] = True
    rest = np.flatnonzero(place < 0)
    for claim in rest.tolist():  # few: only after a broker used an imported store again
        inside = number[at[claims[claim]]]
        start, stop = np.searchsorted(message_group, [inside, inside + 1])
        free = start + np.flatnonzero(~taken[start:stop])
        if len(free):
            place[claim] = free[0]
            taken[free[0]] = True
    claimed = np.zeros(len(timers_by_id.ids), bool)
    claimed[claims[place >= 0]] = True
    winners, messages_won = claims[place >= 0], place[place >= 0]
    messages.ids[messages_won] = timers_by_id.ids[winners]
    messages.rows[messages_won] = timers_by_id.rows[winners]
    messages.state[messages_won] = timers_by_id.state[winners]
    messages.since[messages_won] = timers_by_id.since[winners]
    return claimed


def named_by_deletes(scan: Scan, own: Mask, timers: Timers) -> Mask:
    """Mark timers that a delete record without an own id names, by key and TIMER_OUT_MS."""
    deletes = scan[(scan["kind"] == lib.TS_KIND_DELETE) & ~own]
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


# --- fold levels ---
# Match messages of the delay levels with their deliveries. fold.py states the rules.


class MatchedLevels(NamedTuple):
    """The result of `match_levels`."""

    pending_rows: Rows
    places_done: Int64
    """Places of messages that need no delivery, ascending."""
    duplicate_rows: Rows
    orphan_rows: Rows
    """Deliveries without a source, of timers and levels."""
    timer_duplicate_rows: Rows
    """Duplicate deliveries of timers that no level message explains."""


def match_levels(scan: Scan, orphan_rows: Rows, timer_duplicate_rows: Rows) -> MatchedLevels:
    """Decide which level messages were delivered, by the named place or else by matching.

    `orphan_rows`, `timer_duplicate_rows`: deliveries that no timer explains. Those with a delay
    level take part in the matching.
    """
    kind = scan["kind"]
    sources = np.flatnonzero(kind == lib.TS_KIND_LEVEL)
    deliveries = np.flatnonzero(kind == lib.TS_KIND_LEVEL_DELIVERED)
    named, by_place = _named_by_place(scan, sources, deliveries)
    unexplained = [
        rows[scan["delay_level"][rows] > 0] for rows in (orphan_rows, timer_duplicate_rows)
    ]
    rows = np.concatenate([sources, deliveries[~by_place], *unexplained])
    group = grouped(scan, np.sort(rows), "delay_level", "identity")
    source = kind[group.rows] == lib.TS_KIND_LEVEL
    gives = source.copy()
    gives[source] = ~np.isin(group.rows[source], sources[named])
    found = match_in_order(group, gives, ~source, source)
    given_group = group.number[gives]
    delivered = rank(given_group) < found.delivered[given_group]
    pending = np.sort(group.rows[gives][~delivered])
    done = np.concatenate(
        [np.setdiff1d(sources, pending), np.flatnonzero(kind == lib.TS_KIND_LEVEL_UNUSABLE)]
    )
    in_excess = np.concatenate([group.rows[found.duplicate], group.rows[found.orphan]])
    explained = np.setdiff1d(unexplained[1], in_excess)
    return MatchedLevels(
        pending_rows=pending,
        places_done=np.sort(places_of(scan[done])),
        duplicate_rows=np.setdiff1d(group.rows[found.duplicate], unexplained[1]),
        orphan_rows=np.concatenate(
            [
                orphan_rows[scan["delay_level"][orphan_rows] <= 0],
                np.setdiff1d(group.rows[found.orphan], unexplained[1]),
            ]
        ),
        timer_duplicate_rows=np.setdiff1d(timer_duplicate_rows, explained),
    )


def _named_by_place(scan: Scan, sources: Rows, deliveries: Rows) -> tuple[Mask, Mask]:
    """Mark the sources that a delivery names, and the deliveries that name a source."""
    named = np.zeros(len(sources), bool)
    by_place = np.zeros(len(deliveries), bool)
    if not len(sources) or not len(deliveries):
        return named, by_place
    at = find(scan["timer_id"][deliveries], places_of(scan[sources]))
    there = np.flatnonzero(at >= 0)
    after = deliveries[there] > sources[at[there]]
    same = scan["identity"][deliveries[there]] == scan["identity"][sources[at[there]]]
    there = there[after & same]
    _, first = np.unique(at[there], return_index=True)
    by_place[there[first]] = True
    named[at[there[first]]] = True
    return named, by_place
