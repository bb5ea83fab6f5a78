"""Batch sizes and limits that tests make small."""

from tests.support.inside.attribute import Attribute
from timerstore._engine.leases import backoff, lease_reader
from timerstore._engine.log import commit_log, timer_states
from timerstore._engine.queues import message_ids, record_lookup
from timerstore._engine.read import consumer, query, queue_reader
from timerstore._engine.snapshot import position, view
from timerstore._engine.storage import disk, segments
from timerstore._engine.timer import (
    dequeue_get,
    dequeue_put,
    far_wheel,
    level_delivery,
    open_slot,
)
from timerstore._engine.write import cancel, ingester, ledger, replace
from timerstore.net import client_options, server_connection

SYNC_INTERVAL_NS = Attribute(position, "_READ_ON_NS")
"""Time between two syncs of a log that a broker has open."""

SNAPSHOT_LIMITS = Attribute(position, "limits")
"""Makes a snapshot of the limits of both logs."""

TAIL_UNITS_MAX = Attribute(view, "_TAIL_UNITS")
"""Queue units in memory beyond which a room looks at the files again."""

CANCEL_CHUNK = Attribute(cancel, "_CHUNK")
"""Timers that a cancel of many handles at a time."""

CANCEL_HOLD = Attribute(cancel, "_BATCH")
"""Delete records that a cancel of many appends in one hold of the append lock."""

CANCEL_GAP_UNITS = Attribute(cancel, "_GAP_UNITS")
"""Units between two timers that a cancel of many reads together, at most."""

CANCEL_TEXTS_BYTES = Attribute(cancel, "_TEXTS_BYTES")
"""Bytes of property texts that a cancel of many holds."""

INGEST_CHUNK_ROWS = Attribute(ingester, "_CHUNK_ROWS")
"""Rows of one chunk of an ingest."""

LEDGER_BEHIND_MAX = Attribute(ledger, "_LAG_MAX")
"""Ingest records that the cache of the ledger may be behind."""

PULL_STEP_UNITS_MAX = Attribute(queue_reader, "_STEP_UNITS_MAX")
"""Units that a pull reads at a time, at most."""

PULL_BUFFER_BYTES_MAX = Attribute(queue_reader, "_BUFFER_BYTES_MAX")
"""Bytes of messages that a pull reads at a time, at most."""

FETCH_BYTES_MAX = Attribute(consumer, "_FETCH_BYTES_MAX")
"""Bytes of messages that a poll or a receive reads, about."""

NAMES_BYTES = Attribute(lease_reader, "_NAMES_BYTES")
"""Bytes that a leased message takes in an answer without what it has in the log, about."""

QUERY_BYTES_MAX = Attribute(query, "_ANSWER_BYTES_MAX")
"""Bytes of messages that a query returns, about."""

SMALL_FILE_BYTES_MAX = Attribute(disk, "_SMALL_BYTES_MAX")
"""Bytes of a side file that is read as a whole, at most."""

BACKOFF_MS_MAX = Attribute(backoff, "_LONGEST_MS")
"""The longest delay of a back-off, ms."""

HELLO_BYTES_MAX = Attribute(server_connection, "_HELLO_BYTES_MAX")
"""Bytes of the first message of a client, at most."""

CLIENT_TIME_S_MAX = Attribute(client_options, "_TIME_S_MAX")
"""The longest time of a client's options, s."""

NOTE_COUNT = Attribute(commit_log, "_HINTS_MAX")
"""Notes that a put leaves for dispatch, at most."""

PAST_RANGES_MAX = Attribute(timer_states, "_RANGES_MAX")
"""Ranges of past states that are kept, at most."""

LEVEL_BATCH = Attribute(level_delivery, "_BATCH")
"""Messages on fixed delay levels that are handed over in one step."""

MAPS_MAX = Attribute(segments, "_MAPS_MAX")
"""Files that are mapped at a time, at most."""

DEQUEUE_GET_BATCH = Attribute(dequeue_get, "_BATCH")
"""Units that dequeue-get reads in one step."""

DEQUEUE_GET_LOADED_MAX = Attribute(dequeue_get, "_LOADED_MAX")
"""Entries in the open slot beyond which dequeue-get begins no further slot."""

DEQUEUE_GET_LOADED_AHEAD_MAX = Attribute(dequeue_get, "_LOADED_AHEAD_MAX")
"""Entries of one slot beyond which dequeue-get does not read it ahead."""

CONCURRENT_UNITS_MAX = Attribute(dequeue_get, "_CONCURRENT_UNITS_MAX")
"""Units of slots that dequeue-get reads together, at most."""

FAR_BATCH = Attribute(far_wheel, "_BATCH")
"""Units that the far wheel moves in one step."""

DEQUEUE_PUT_BATCH = Attribute(dequeue_put, "_BATCH")
"""Entries that dequeue-put hands over in one step."""

DEQUEUE_PUT_SORTED = Attribute(dequeue_put, "_SORTED")
"""Entries that dequeue-put sorts by topic in one step, at most."""

RUN_MAX = Attribute(open_slot, "_RUN_MAX")
"""Entries of a sorted run beyond which it is not merged."""

BURST_UNITS = Attribute(dequeue_get, "_BURST_UNITS")
"""Units for which dequeue-get begins a slot ahead of its time."""

BURST_UNITS_PER_S = Attribute(dequeue_get, "_BURST_UNITS_PER_S")
"""Units that dequeue-get reads in a second, at least."""

RECOVER_BATCH = Attribute(record_lookup, "_SCAN_BATCH")
"""Records that recovery scans in one call."""

IDS_CAPACITY_MIN = Attribute(message_ids, "_CAPACITY_MIN")
"""Message ids for which the table has room at first."""

IDS_FILE_BYTES_MIN = Attribute(message_ids, "_FILE_BYTES_MIN")
"""Bytes below which the file of message ids is not rewritten."""

KNOWN_KEYS_MAX = Attribute(replace, "_KNOWN_MAX")
"""Keys whose pending message is known in memory, at most."""


def staging_gather_rows() -> Attribute:
    """Rows that a staged write gathers before it writes them."""
    from timerstore.shards import row_staging

    return Attribute(row_staging, "_GATHER_ROWS")
