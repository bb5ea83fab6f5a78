"""timerstore: messages that are due later, handed to their topics once and never early.

store = timerstore.open("orders.store")
store.put("orders", b"close 4711", delay=1800)
"""

from timerstore.backup import check_backup, restore
from timerstore.beside import ReadOnlyStore
from timerstore.config import StoreConfig
from timerstore.converting import ConvertReport, convert
from timerstore.delay_queue import DelayQueue
from timerstore.errors import (
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
    NotWaitingError,
    ReadOnlyError,
    TimerStoreError,
)
from timerstore.inspect import repair_directory as repair
from timerstore.inspect import verify_directory
from timerstore.leases import AckResult, Backoff, LeaseConsumer, LeasedMessage
from timerstore.message import (
    BackupReport,
    CancelResult,
    Explanation,
    Histogram,
    HistoryEntry,
    Message,
    MessageBatch,
    PendingTimer,
    PullResult,
    PullStatus,
    PutBatch,
    PutReceipt,
    Report,
)
from timerstore.pull.consumer import Consumer
from timerstore.recurring import Recurring
from timerstore.row_batch import IngestedVersions, IngestReceipt, RowBatch
from timerstore.shards import ShardedStore, open_shards
from timerstore.store import TimerStore, open  # noqa: A004

__all__ = [
    "AckResult",
    "Backoff",
    "BackupReport",
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
    "NotWaitingError",
    "PendingTimer",
    "PullResult",
    "PullStatus",
    "PutBatch",
    "PutReceipt",
    "ReadOnlyError",
    "ReadOnlyStore",
    "Recurring",
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
