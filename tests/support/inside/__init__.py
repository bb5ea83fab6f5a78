"""The only access of tests to the private parts of the engine.

Other tests use no private attribute, which the linter's SLF001 enforces. Exempt are this folder and
`tests/unit/fastpath`, the white-box tests of the fast path. A change of the engine's private parts
needs a change here only.

    inside(store).log            a component of an open store
    wait_queue_of(table)         a private part of a component, one function each

store.py      the components of an open store
engine.py     the engine's modules and classes that planted faults and the simulator replace
methods.py    its private methods that tests replace
sizes.py      its batch sizes, all made small
limits.py     single batch sizes and limits
parts.py      private parts, for the simulator and for tests of crashes, properties and files
services.py, log.py, writing.py, timer.py, reading.py, snapshots.py, shards.py, tools.py
              private parts by area, for unit tests
"""

from tests.support.inside.attribute import Attribute
from tests.support.inside.limits import (
    BURST_UNITS,
    BURST_UNITS_PER_S,
    CANCEL_CHUNK,
    CANCEL_GAP_UNITS,
    CANCEL_HOLD,
    CANCEL_TEXTS_BYTES,
    CONCURRENT_UNITS_MAX,
    DEQUEUE_GET_BATCH,
    DEQUEUE_GET_LOADED_AHEAD_MAX,
    DEQUEUE_GET_LOADED_MAX,
    DEQUEUE_PUT_BATCH,
    DEQUEUE_PUT_SORTED,
    FAR_BATCH,
    IDS_CAPACITY_MIN,
    IDS_FILE_BYTES_MIN,
    INGEST_CHUNK_ROWS,
    KNOWN_KEYS_MAX,
    LEDGER_BEHIND_MAX,
    LEVEL_BATCH,
    MAPS_MAX,
    NOTE_COUNT,
    PAST_RANGES_MAX,
    PULL_BUFFER_BYTES_MAX,
    PULL_STEP_UNITS_MAX,
    RECOVER_BATCH,
    RUN_MAX,
    SNAPSHOT_LIMITS,
    SYNC_INTERVAL_NS,
    TAIL_UNITS_MAX,
    staging_gather_rows,
)
from tests.support.inside.log import (
    DISPATCH_READ,
    ROUTES_STEPS,
    BatchColumns,
    batch_columns,
    batch_end,
    batch_requests,
    crc_of_backup,
    forget_levels,
    forget_runs,
    log_of,
    old_watermark_slot,
    queue_segments,
    segment_pointer,
    staging_head,
    unwatch,
    watermark_magic,
    wheel_file_of,
    write_index_in_each_checkpoint,
)
from tests.support.inside.reading import (
    LEASES_MOVE,
    LEASING_ROW,
    QUERIER_STEPS,
    aio_page_count,
    bells_of,
    body_of,
    consumer_fetch,
    consumer_pull,
    forget_sql_parser,
    group_lock,
    groups_by_topic,
    has_waiting_pulls,
    kept_buffers,
    page_buffers,
    pending_commits,
    property_reader,
    readers_of_removals,
    recent_removals,
    route_and_filter,
    store_of,
    wait_queue_of,
    waiters_of,
)
from tests.support.inside.services import (
    COPIER_CONFIG_TEXTS,
    DIRECTORY_HELD_LOCK,
    GUARD_LOCK,
    calendar_grow_lock,
    checkpoint_lock,
    dispatch_batch,
    flush_at_once,
    flush_is_requested,
    forget_flush_request,
    is_error_of,
    keep_log_from,
    lock_of_key,
    log_write_lock,
    offsets_write_lock,
    replaced_subscribers,
    service_event,
    set_unlinked_requests,
    slots_in_reading,
    subscribe_first,
    sync_of_cancels,
    timer_records_read,
    topics_checked_count,
    topics_checked_max,
)
from tests.support.inside.shards import (
    ingest_in_background,
    ingesters_of,
    is_ingested,
    shard_consumers,
)
from tests.support.inside.snapshots import (
    distrusted_version,
    followed_position_of,
    is_time_to_sync,
    log_at_position,
    look_at_position,
    polling_of,
    position_steps,
    queue_files,
    read_only_lock,
    units_in_memory,
    view_of,
)
from tests.support.inside.store import Inside, inside
from tests.support.inside.timer import (
    DELAY_QUEUE_MAKE_BUCKETS,
    PENDING_DUE,
    bucket_count,
    bucket_number_count,
    bucket_parts,
    bucket_width_ms,
    delivery_chunk_count,
    make_topic_queue,
    opened_bucket,
    placing_of_cancels,
    run_count,
)
from tests.support.inside.tools import (
    clock_listeners,
    event_stream_count,
    export_sync,
    late_by_bound,
    ledger_of_part,
    loop_of_server,
    partitions_of_tasks,
    root_of_write,
    set_event_stream_count,
    span_text,
    store_of_page,
    without_delivered,
)
from tests.support.inside.writing import (
    APPEND_OWN,
    add_id,
    append_of_many,
    counted_slots,
    counts_by_slot,
    doubt_header,
    encode_replacement,
    end_half_message,
    known_keys,
    planner_is_started,
    putting_of,
    recount,
)
from timerstore._engine.base import failpoints
from timerstore._engine.storage.disk import Disk
