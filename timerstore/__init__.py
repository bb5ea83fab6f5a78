"""A storage engine for delayed messages: each is delivered to its topic once, and never early.

store = timerstore.open("orders.store")
store.put("orders", b"close 4711", delay=1800)
"""

from timerstore._engine.convert import ConvertReport, convert
from timerstore._engine.ingest.row_batch import IngestedVersions, IngestReceipt, RowBatch
from timerstore._engine.leases import AckResult, Backoff, LeaseConsumer, LeasedMessage
from timerstore._engine.maintenance import check_backup, restore, verify_directory
from timerstore._engine.maintenance import repair_directory as repair
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.recurring import Recurring
from timerstore._engine.timer.delay_queue import DelayQueue
from timerstore.config import StoreConfig
from timerstore.errors import (
    BucketError,
    BusyError,
    ClosedError,
    ConfigError,
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
    ReadOnlyError,
    ReentrantCallError,
    TimerStoreError,
)
from timerstore.messages import Message, MessageBatch, PullResult, PullStatus
from timerstore.read_only_store import ReadOnlyStore
from timerstore.receipts import PutBatch, PutReceipt
from timerstore.reports import (
    BackupReport,
    CancelResult,
    Explanation,
    Histogram,
    HistoryEntry,
    PendingTimer,
    Report,
)
from timerstore.shards import ShardedStore, open_shards
from timerstore.store import TimerStore, open  # noqa: A004

__all__ = [
    "AckResult",
    "Backoff",
    "BackupReport",
    "BucketError",
    "BusyError",
    "CancelResult",
    "ClosedError",
    "ConfigError",
    "Consumer",
    "ConvertReport",
    "CorruptError",
    "DelayQueue",
    "Explanation",
    "FailedError",
    "FlowControlError",
    "FlushTimeoutError",
    "ForkedError",
    "FormatVersionError",
    "FullError",
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
    "ShardedStore",
    "StoreConfig",
    "TimerStore",
    "TimerStoreError",
    "check_backup",
    "convert",
    "open",
    "open_shards",
    "repair",
    "restore",
    "verify_directory",
]
