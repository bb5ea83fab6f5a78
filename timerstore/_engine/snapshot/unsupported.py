"""UnsupportedCalls: what would change a store that was opened read-only.

Fails:    ReadOnlyError, with the call's name and the store's path; ClosedError, ForkedError.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from timerstore._engine.snapshot.calls import SnapshotCalls
from timerstore.errors import ReadOnlyError


def _refused(name: str) -> Callable[..., NoReturn]:
    def call(self: SnapshotCalls, *_given: Any, **_named: Any) -> NoReturn:
        self.check_open()
        raise ReadOnlyError(f"{name}: the store was opened read-only", where=self.path)

    call.__name__ = name
    call.__doc__ = "Refuse: ReadOnlyError."
    return call


class UnsupportedCalls(SnapshotCalls):
    """The calls that a TimerStore has beside."""

    put = _refused("put")
    put_many = _refused("put_many")
    put_every = _refused("put_every")
    cancel_every = _refused("cancel_every")
    ingest = _refused("ingest")
    cancel = _refused("cancel")
    cancel_many = _refused("cancel_many")
    reschedule = _refused("reschedule")
    pace = _refused("pace")
    consumer = _refused("consumer")  # it commits; `follow` does not
    receive = _refused("receive")
    begin_receive = _refused("begin_receive")
    lease_consumer = _refused("lease_consumer")
    ack = _refused("ack")
    ack_many = _refused("ack_many")
    nack = _refused("nack")
    extend = _refused("extend")
    flush = _refused("flush")
    backup = _refused("backup")  # it begins with a flush
    services = _refused("services")
    begin_pull = _refused("begin_pull")  # of a store whose owner tells who waits
    begin_pull_batch = _refused("begin_pull_batch")
