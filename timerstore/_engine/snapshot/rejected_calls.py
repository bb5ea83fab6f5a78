"""The calls that a read-only store rejects, and why.

Raises: ReadOnlyError, with the call's name and the store's path; ClosedError, ForkedError.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from timerstore._engine.snapshot.snapshot_calls import SnapshotCalls
from timerstore.errors import ReadOnlyError

_CHANGES = "it would change the store"
_WAITS = "the store's owner notifies waiting pulls, and it is another process"

UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "put", "put_many", "put_every", "cancel_every", "ingest", "cancel", "cancel_many",
                "reschedule", "pace", "receive", "begin_receive", "lease_consumer", "ack",
                "ack_many", "nack", "extend", "renew", "heartbeat", "bury", "requeue", "flush",
            ),
            _CHANGES,
        ),
        "backlog": "the process that has the store open counts leases",
        "consumer": "it commits; `follow` does not",
        "backup": "it begins with a flush",
        "services": "it has none",
        "begin_pull": _WAITS,
        "begin_pull_batch": _WAITS,
    }
)  # fmt: skip
"""By name of the call: the reason."""


def _rejection(name: str) -> Callable[..., NoReturn]:
    def call(self: SnapshotCalls, *_given: Any, **_named: Any) -> NoReturn:
        self.check_open()
        raise ReadOnlyError(
            f"{name}: the store was opened read-only ({UNSUPPORTED[name]})", where=self.path
        )

    call.__name__ = name
    call.__doc__ = "Raise ReadOnlyError."
    return call


def reject_unsupported(kind: type) -> type:
    """Make a class reject these calls; a decorator."""
    for name in UNSUPPORTED:
        setattr(kind, name, _rejection(name))
    return kind
