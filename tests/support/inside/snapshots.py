"""Private parts of a read-only store."""

from typing import Any

from tests.support.inside.attribute import Attribute


def view_of(store: Any) -> Any:
    """Return the log and the queues of a ReadOnlyStore: snapshot/view.py."""
    return store._view


def read_only_lock(store: Any) -> Any:
    """Return the lock of a ReadOnlyStore."""
    return store._lock


def polling_of(store: Any) -> Any:
    """Return the polling of the waiting pulls of a ReadOnlyStore: snapshot/snapshot_calls.py."""
    return store._polling


def followed_position_of(view: Any) -> Any:
    """Return the follower of a store's position: snapshot/position.py."""
    return view._followed


def look_at_position(view: Any) -> Any:
    """Return the newest position without moving the view to it."""
    return view._followed.look(view._records_end)


def is_time_to_sync(position: Any) -> bool:
    """Return whether it is time to sync the log of a broker that has the store open."""
    return bool(position._is_time())


def log_at_position(view: Any) -> Any:
    """Return the log's files at the view's position, to sync them."""
    return view._followed._log(view.position.store)


def distrusted_version(view: Any) -> int | None:
    """Return the version of the queues' files that a view does not trust, or None."""
    found: int | None = view._distrusted
    return found


def units_in_memory(view: Any) -> int:
    """Return how many queue units a view holds in memory."""
    return int(view._tail_units)


def queue_files(queue: Any) -> Any:
    """Return the files of one queue, and the units in memory that follow them."""
    return queue._segments


def position_steps(view: Any) -> dict[str, Attribute]:
    """Return the steps by which a view moves to a position, in order."""
    return {
        "counts": Attribute(view._followed, "counts"),
        "show": Attribute(view.log.segments, "show"),
        "covered": Attribute(view, "_covered_by_files"),
        "forget": Attribute(view.routes.by_index[0].queue, "forget"),
        "units": Attribute(view.routes.by_index[0].queue, "add"),
    }
