"""A storage engine for delayed messages: each is delivered to its topic once, and never early.

store = timerstore.open("orders.store")
store.put("orders", b"close 4711", delay=1800)
"""

import importlib
from typing import TYPE_CHECKING, Any

from timerstore._engine.base.version import __version__
from timerstore._engine.convert import ConvertReport, convert
from timerstore._engine.leases import (
    AckResult,
    Backoff,
    DeadLetter,
    LeaseConsumer,
    LeasedMessage,
)
from timerstore._engine.maintenance import check_backup, restore, verify_directory
from timerstore._engine.maintenance import repair_directory as repair
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.recurring import Recurring
from timerstore._engine.timer.delay_queue import DelayQueue
from timerstore._engine.write.row_batch import IngestedVersions, IngestReceipt, RowBatch
from timerstore.errors import (
    AccessError,
    BucketError,
    BusyError,
    ClosedError,
    ConfigError,
    ConflictError,
    ConnectionLostError,
    CorruptError,
    FailedError,
    FlowControlError,
    ForkedError,
    FormatVersionError,
    FullError,
    GoneError,
    LeaseLostError,
    LockedError,
    MessageError,
    NotPendingError,
    ProtocolError,
    ReadOnlyError,
    ReentrantCallError,
    ServerError,
    TimerStoreError,
    UnavailableError,
)
from timerstore.store import ConnectedStore, ReadOnlyStore, TimerStore, connect, open  # noqa: A004
from timerstore.types.config import StoreConfig
from timerstore.types.messages import Message, MessageBatch, PullResult, PullStatus
from timerstore.types.receipts import PutBatch, PutReceipt
from timerstore.types.reports import (
    BackupReport,
    CancelResult,
    Explanation,
    GroupBacklog,
    Histogram,
    HistoryEntry,
    PendingTimer,
    Report,
)

if TYPE_CHECKING:
    from timerstore.shards import ShardedStore, open_shards

__all__ = [
    "AccessError",
    "AckResult",
    "Backoff",
    "BackupReport",
    "BucketError",
    "BusyError",
    "CancelResult",
    "ClosedError",
    "ConfigError",
    "ConflictError",
    "ConnectedStore",
    "ConnectionLostError",
    "Consumer",
    "ConvertReport",
    "CorruptError",
    "DeadLetter",
    "DelayQueue",
    "Explanation",
    "FailedError",
    "FlowControlError",
    "ForkedError",
    "FormatVersionError",
    "FullError",
    "GoneError",
    "GroupBacklog",
    "Histogram",
    "HistoryEntry",
    "IngestReceipt",
    "IngestedVersions",
    "LeaseConsumer",
    "LeaseLostError",
    "LeasedMessage",
    "LockedError",
    "Message",
    "MessageBatch",
    "MessageError",
    "NotPendingError",
    "PendingTimer",
    "ProtocolError",
    "PullResult",
    "PullStatus",
    "PutBatch",
    "PutReceipt",
    "ReadOnlyError",
    "ReadOnlyStore",
    "Recurring",
    "ReentrantCallError",
    "Report",
    "RowBatch",
    "ServerError",
    "ShardedStore",
    "StoreConfig",
    "TimerStore",
    "TimerStoreError",
    "UnavailableError",
    "__version__",
    "check_backup",
    "connect",
    "convert",
    "open",
    "open_shards",
    "repair",
    "restore",
    "verify_directory",
]

_OF_SHARDS = {"ShardedStore", "open_shards", "shards"}
"""Names that are imported when they are first used: most programs use one store. The modules of
shards would take a fifth of the time of `import timerstore`."""


def __getattr__(name: str) -> Any:
    """Import a name of `_OF_SHARDS`."""
    if name not in _OF_SHARDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = importlib.import_module("timerstore.shards")
    return found if name == "shards" else getattr(found, name)


def __dir__() -> list[str]:
    """List the names of this module, also those that are not imported yet."""
    return sorted({*globals(), *_OF_SHARDS})
