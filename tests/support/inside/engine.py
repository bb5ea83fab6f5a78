"""The engine's modules and classes that planted faults and the simulator's seams replace.

    from tests.support.inside.engine import Checkpoint, linker

A class stands here for faults in its public methods; a module for the functions, classes and
constants that are replaced in it, where it uses them. `methods.py` has the private methods.
When a part of the engine moves, these imports are what changes.
"""

from importlib import import_module

# --- the store: opening and its calls ---
from timerstore import opening, putting_many, store

# --- backups ---
from timerstore.backup import copying, restoring
from timerstore.backup.copying import Copier
from timerstore.backup.copying import _Transfer as Transfer
from timerstore.backup.copying import _write_manifest as write_manifest

# --- the commit log ---
from timerstore.commitlog import commit_log, recover, retention
from timerstore.commitlog.commit_log import CommitLog
from timerstore.commitlog.retention import NOTHING, Retention
from timerstore.commitlog.staging import Staging

# --- message ids ---
from timerstore.dedupe.firsts import Firsts
from timerstore.dedupe.ids import Ids

# --- files ---
from timerstore.files import directory, disk, paths
from timerstore.files.directory import Directory
from timerstore.files.disk import Disk
from timerstore.files.segments import Segments

# --- ingest of tables ---
from timerstore.ingest.cache import Cache
from timerstore.ingest.carrying import Carrier
from timerstore.ingest.ingester import Ingester
from timerstore.ingest.ledger import Ledger

# --- the layout of the directory ---
from timerstore.layout.counts_json import NO_IDS
from timerstore.layout.tree import Tree

# --- leases ---
from timerstore.leases import leases, leasing
from timerstore.leases.leases import Leases
from timerstore.leases.leasing import Leasing

# --- C ---
from timerstore.native import ffi, lib
from timerstore.opening import _Opening as Opening

# --- reading ---
from timerstore.pull.lease_progress import LeaseProgress
from timerstore.pull.offsets import Offsets
from timerstore.pull.pull import Puller
from timerstore.pull.unread import Unread

# --- puts ---
from timerstore.putting import Putting
from timerstore.putting_many import ManyPutting

# --- queues ---
from timerstore.queues import dispatch
from timerstore.queues.consume_queue import ConsumeQueue
from timerstore.queues.dispatch import Dispatch
from timerstore.queues.index import Index
from timerstore.queues.level_cursors import LevelCursors

# --- recurring messages ---
from timerstore.recurring import given as recurring_given
from timerstore.recurring import planner
from timerstore.recurring.definitions import Definitions
from timerstore.recurring_calls import RecurringCalls

# --- puts with a key ---
from timerstore.replacing import Replacing
from timerstore.rows import Part, Rows

# --- fixed delay levels ---
from timerstore.schedule.deliver import ScheduleDeliver

# --- several shards ---
from timerstore.shards import sharded
from timerstore.shards.consumer import ShardConsumer
from timerstore.shards.sharded import ShardedStore

# --- due times drawn from a window ---
from timerstore.spreading import Spreader
from timerstore.store import TimerStore

# --- the timer ---
from timerstore.timer import (
    dequeue_get,
    dequeue_put,
    enqueue_get,
    far,
    lanes,
    linker,
    open_slot,
    retain,
)
from timerstore.timer import recover as timer_recover
from timerstore.timer.cancel import Canceller
from timerstore.timer.cancel_many import ManyCanceller
from timerstore.timer.checkpoint import Checkpoint
from timerstore.timer.dequeue_get import DequeueGet
from timerstore.timer.dequeue_get_message import DequeueGetMessage
from timerstore.timer.dequeue_put import DequeuePut
from timerstore.timer.due_queue import DueQueue
from timerstore.timer.enqueue_get import EnqueueGet
from timerstore.timer.enqueue_put import EnqueuePut
from timerstore.timer.far import FarWheel
from timerstore.timer.lanes import Lanes
from timerstore.timer.lanes import _Lane as Lane
from timerstore.timer.linker import Linker
from timerstore.timer.move import Mover
from timerstore.timer.named import Finder, Named
from timerstore.timer.open_slot import OpenSlot
from timerstore.timer.past import PastUnits
from timerstore.timer.pending import PendingReader
from timerstore.timer.pending import _as_due as as_due
from timerstore.timer.retain import _Derived as Derived
from timerstore.timer.states import States
from timerstore.timer.timer_log import TimerLog
from timerstore.timer.wheel import DirtyPages, Wheel
from timerstore.timer.wheel_checks import WheelChecks

shard_ingest = import_module("timerstore.shards.ingest")  # its package has a function of that name
