"""The engine's modules and classes that planted faults and the simulator's seams replace.

    from tests.support.inside.engine import Checkpoint, linker

A class stands here for faults in its public methods; a module for the functions, classes and
constants that are replaced in it, where it uses them. `methods.py` has the private methods.
When a part of the engine moves, these imports are what changes.
"""

from importlib import import_module

# --- the store: opening and its calls ---
from timerstore._engine import engine as assembly
from timerstore._engine.base.column_batch import BatchPart, ColumnBatch

# --- C ---
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.calls import open_store
from timerstore._engine.engine import Engine

# --- the layout of the directory ---
from timerstore._engine.format.counts_json import NO_IDS
from timerstore._engine.format.store_paths import Tree

# --- leases ---
from timerstore._engine.leases import lease_appender, leases
from timerstore._engine.leases.dead_letters import DeadLetterReader
from timerstore._engine.leases.half_messages import HalfMessages
from timerstore._engine.leases.lease_appender import LeaseAppender
from timerstore._engine.leases.leases import Leases
from timerstore._engine.leases.message_order import MessageOrder

# --- the commit log ---
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.staging import Staging
from timerstore._engine.log.timer_states import TimerStates

# --- backups ---
from timerstore._engine.maintenance import backup, restore_backup
from timerstore._engine.maintenance.backup import Copier
from timerstore._engine.maintenance.backup import _Transfer as Transfer
from timerstore._engine.maintenance.backup import _write_manifest as write_manifest

# --- queues ---
from timerstore._engine.queues import dispatch
from timerstore._engine.queues.consume_queue import ConsumeQueue
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.key_index import Index
from timerstore._engine.queues.level_cursors import LevelCursors

# --- message ids ---
from timerstore._engine.queues.message_ids import Ids, OriginalMessages

# --- reading ---
from timerstore._engine.read.consumer_offsets import ConsumerLag, LeaseProgress, Offsets
from timerstore._engine.read.pull import Puller
from timerstore._engine.recovery import log_checks, recovery
from timerstore._engine.recovery.recovery import Recovery

# --- recurring messages ---
from timerstore._engine.recurring import definition as recurring_given
from timerstore._engine.recurring import planner
from timerstore._engine.recurring.planner import Definitions
from timerstore._engine.recurring.recurring_calls import RecurringCalls

# --- files ---
from timerstore._engine.storage import anchor, directory, disk
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments

# --- the timer ---
from timerstore._engine.timer import (
    dequeue_put,
    fair_queue,
    far_wheel,
    linker,
    open_slot,
    timer_retention,
)
from timerstore._engine.timer import log_retention as retention
from timerstore._engine.timer import timer_recovery as timer_recover
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.dequeue_get import DequeueGet
from timerstore._engine.timer.dequeue_get_message import DequeueGetMessage
from timerstore._engine.timer.dequeue_put import DequeuePut
from timerstore._engine.timer.enqueue_get import EnqueueGet
from timerstore._engine.timer.enqueue_put import EnqueuePut
from timerstore._engine.timer.fair_queue import FairQueue
from timerstore._engine.timer.fair_queue import _TopicQueue as TopicQueue
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.handle_lookup import FoundTimer, HandleLookup

# --- fixed delay levels ---
from timerstore._engine.timer.level_delivery import ScheduleDeliver
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.log_retention import Retention
from timerstore._engine.timer.open_slot import DueQueue, OpenSlot
from timerstore._engine.timer.pending import WheelPending
from timerstore._engine.timer.pending import _as_due as as_due
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_retention import (
    NOTHING,
    ExpiredSegments,
    Relocator,
    TimerRetention,
)
from timerstore._engine.timer.wheel import DirtyPages, Wheel, WheelChecks

# --- puts ---
from timerstore._engine.write import put_many
from timerstore._engine.write.append import Appender
from timerstore._engine.write.cancel import Canceller, ManyCanceller
from timerstore._engine.write.contents import Contents
from timerstore._engine.write.ingester import Ingester

# --- ingest of tables ---
from timerstore._engine.write.ledger import Ledger, LedgerSideFile
from timerstore._engine.write.put import PutWriter
from timerstore._engine.write.put_many import PutBatchWriter

# --- due times drawn from a window ---
from timerstore._engine.write.put_requests import PutCheck, Spreader

# --- puts with a key ---
from timerstore._engine.write.replace import ReplaceWriter
from timerstore._engine.write.targets import Targets

# --- several shards ---
from timerstore.shards import background_ingest, shard_calls, shard_pending, sharded
from timerstore.shards.shard_consumer import ShardConsumer
from timerstore.shards.sharded import ShardedStore
from timerstore.store import TimerStore

shard_ingest = import_module(
    "timerstore.shards.shard_ingest"
)  # its package has a function of that name
