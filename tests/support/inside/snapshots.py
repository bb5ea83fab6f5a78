"""A store that is read beside its owner."""

from typing import Any

from tests.support.inside.attribute import Attribute


def room_of(store: Any) -> Any:
    """The log and the queues of a ReadOnlyStore: snapshot/view.py."""
    return store._room


def read_only_lock(store: Any) -> Any:
    """The lock of a ReadOnlyStore."""
    return store._lock


def polling_of(store: Any) -> Any:
    """What the pulls of a ReadOnlyStore wait by: snapshot/snapshot_polling.py."""
    return store._polling


def moments_of(room: Any) -> Any:
    """What looks for a store's newest moment: snapshot/position.py."""
    return room._moments


def look_at_moment(room: Any) -> Any:
    """Look for the newest moment, and do not move the room on to it."""
    return room._moments.look(room._records_end)


def is_time_to_sync(moments: Any) -> bool:
    """Whether the log of a broker that has the store open is to be synced."""
    return bool(moments._is_time())


def log_at_moment(room: Any) -> Any:
    """The log's files as of the room's moment, to sync them."""
    return room._moments._log(room.moment.store)


def distrusted_version(room: Any) -> int | None:
    """As of which version a room does not believe the queues' files; None: it does."""
    found: int | None = room._distrusted
    return found


def units_in_memory(room: Any) -> int:
    """How many queue units a room holds in memory."""
    return int(room._tail_units)


def queue_files(queue: Any) -> Any:
    """The files of one queue, and the units in memory that follow them."""
    return queue._files


def moment_steps(room: Any) -> dict[str, Attribute]:
    """The steps by which a room moves on to a moment, in order."""
    return {
        "counts": Attribute(room._moments, "_counts"),
        "show": Attribute(room.log.segments, "show"),
        "covered": Attribute(room, "_covered_by_files"),
        "forget": Attribute(room.routes.by_index[0].queue, "forget"),
        "units": Attribute(room, "_add"),
    }
