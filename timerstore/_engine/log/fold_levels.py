"""Match messages of the delay levels with their deliveries. fold.py states the rules."""

from typing import NamedTuple

import numpy as np

from timerstore._engine.log.multiset import Int64, Mask, Rows, find, grouped, match_in_order, rank
from timerstore._engine.log.scanned_records import RecordKind, Scan, places_of


class MatchedLevels(NamedTuple):
    """The result of `match_levels`."""

    pending_rows: Rows
    delivered_count: int
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
    sources = np.flatnonzero(kind == RecordKind.LEVEL)
    deliveries = np.flatnonzero(kind == RecordKind.LEVEL_DELIVERED)
    named, by_place = _named_by_place(scan, sources, deliveries)
    unexplained = [
        rows[scan["delay_level"][rows] > 0] for rows in (orphan_rows, timer_duplicate_rows)
    ]
    rows = np.concatenate([sources, deliveries[~by_place], *unexplained])
    group = grouped(scan, np.sort(rows), "delay_level", "identity")
    source = kind[group.rows] == RecordKind.LEVEL
    gives = source.copy()
    gives[source] = ~np.isin(group.rows[source], sources[named])
    found = match_in_order(group, gives, ~source, source)
    given_group = group.number[gives]
    delivered = rank(given_group) < found.delivered[given_group]
    pending = np.sort(group.rows[gives][~delivered])
    done = np.concatenate(
        [np.setdiff1d(sources, pending), np.flatnonzero(kind == RecordKind.LEVEL_UNUSABLE)]
    )
    in_excess = np.concatenate([group.rows[found.duplicate], group.rows[found.orphan]])
    explained = np.setdiff1d(unexplained[1], in_excess)
    return MatchedLevels(
        pending_rows=pending,
        delivered_count=len(sources) - len(pending),
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
