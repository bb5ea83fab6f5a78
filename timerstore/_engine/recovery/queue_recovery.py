"""Recover the consume queues as of a watermark, or restart them for a rebuild from the log."""

from timerstore._engine.format import counts_json
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC
from timerstore._engine.log.log_recovery import first_offsets
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.queues.routes import Routes
from timerstore._engine.timer import timer_recovery


def recover_queues(
    routes: Routes, known_counts: counts_json.Pending, log_end: int, log_begin: int
) -> bool:
    """Recover each queue; return False if files are missing or a count is not as known.

    known_counts: queue counts by topic and queue number, as of the watermark.
    """
    for route in routes.by_index:
        if not route.queue.is_whole(log_begin):
            return False
        route.queue.recover(log_end, log_begin)
    for topic, queues in known_counts.items():
        for queue_id, count in queues.items():
            found = routes.get(topic, queue_id)
            if found is None or found.queue.count != count:
                return False
    return True


def restart_queues(
    routes: Routes,
    scanned: Scan,
    begin: int,
    end: int,
    known_counts: counts_json.Pending,
    now_ms: int,
) -> None:
    """Empty each queue and let it begin at its first record in the log [begin, end).

    A queue without a record in the log keeps its units. If retention removed all its records, it
    continues at its count in `known_counts`.

    Without such a count the timer topic begins at 0. Then neither a copy nor a watermark is left
    that vouches for the store's id, so the timer ids are those of a new store id.
    """
    for topic, queues in known_counts.items():
        for queue_id in queues:
            routes.make(topic, queue_id, now_ms)
    found = first_offsets(scanned)
    first = dict(found.by_route)
    for queue_id, offset in found.by_level.items():
        level = routes.get(SCHEDULE_TOPIC, queue_id)
        assert level is not None, "the scan has made this route"
        first[int(level.native.index)] = offset
    if found.timer is not None:
        first[int(timer_recovery.timer_route(routes).native.index)] = found.timer
    for route in routes.by_index:
        at = first.get(int(route.native.index))
        known = known_counts.get(route.topic, {}).get(route.queue_id, 0)
        if at is not None:
            route.queue.restart(at)
        elif route.queue.has_incompatible_files:
            route.queue.restart(known)
        else:
            route.queue.recover(end, begin)
            route.queue.cut()
            if route.queue.count < known:
                route.queue.restart(known)
