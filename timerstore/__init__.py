"""A storage engine for delayed messages: each is delivered to its topic once, and never early.

store = timerstore.open("orders.store")
store.put("orders", b"close 4711", delay=1800)
"""

from timerstore._engine.convert import ConvertReport, convert
from timerstore._engine.ingest.row_batch import IngestedVersions, IngestReceipt, RowBatch
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
from timerstore.config import StoreConfig
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
    FlushTimeoutError,
    ForkedError,
    FormatVersionError,
    FullError,
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
from timerstore.messages import Message, MessageBatch, PullResult, PullStatus
from timerstore.read_only_store import ReadOnlyStore
from timerstore.receipts import PutBatch, PutReceipt
from timerstore.reports import (
    BackupReport,
    CancelResult,
    Explanation,
    GroupBacklog,
    Histogram,
    HistoryEntry,
    PendingTimer,
    Report,
)
from timerstore.shards import ShardedStore, open_shards
from timerstore.store import TimerStore, connect, open  # noqa: A004

__version__ = "0.1.0"
"""The version of the package."""

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
    "ConnectionLostError",
    "Consumer",
    "ConvertReport",
    "CorruptError",
    "DeadLetter",
    "DelayQueue",
    "Explanation",
    "FailedError",
    "FlowControlError",
    "FlushTimeoutError",
    "ForkedError",
    "FormatVersionError",
    "FullError",
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
