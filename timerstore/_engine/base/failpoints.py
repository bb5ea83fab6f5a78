"""Fail points: named points in the code at which a test may kill the process or fail a call.

Invariants:
    1. Every name is in one of the tuples, so that a test can check that each point is reached.

Without a hook, a fail point costs one read of a module variable.
"""

from collections.abc import Callable

NAMES = (
    "put_appended",
    "put_many_part_appended",
    "put_level_appended",
    "put_single_appended",
    "put_once_answered",
    "put_group_appended",
    "ingest_chunk_appended",
    "ingest_appended",
    "ingest_ledger_saved",
    "log_half_swapped",
    "log_rolled",
    "log_written_out",
    "log_synced",
    "segment_created",
    "dispatch_queues_written",
    "dispatch_index_rolled",
    "dispatch_index_written",
    "enqueue_requests_read",
    "enqueue_slots_linked",
    "enqueue_units_written",
    "dequeue_slot_begun",
    "dequeue_units_read",
    "dequeue_messages_loaded",
    "deliver_placed",
    "schedule_encoded",
    "schedule_placed",
    "cancel_appended",
    "reschedule_encoded",
    "reschedule_appended",
    "retention_move_encoded",
    "retention_moved",
    "retention_emptied",
    "retention_retired",
    "retention_begin_raised",
    "retention_queue_dropped",
    "retention_index_dropped",
    "retention_timer_log_unlinked",
    "retention_log_unlinked",
    "checkpoint_taken",
    "checkpoint_log_synced",
    "checkpoint_queues_synced",
    "checkpoint_index_synced",
    "checkpoint_index_saved",
    "checkpoint_states_written",
    "checkpoint_wheel_written",
    "checkpoint_ids_written",
    "checkpoint_counts_written",
    "checkpoint_watermark_written",
    "recover_marked_open",
    "recover_wheel_lengthened",
    "recover_staged_restored",
    "recover_log_settled",
    "recover_queues_cut",
    "recover_wheel_written",
    "recover_timer_log_cut",
    "recover_index_relinked",
    "recover_index_removed",
    "recover_dispatched",
    "recover_offsets_clamped",
    "recover_rebuild_begun",
    "recover_rebuild_queues_restarted",
    "close_checkpointed",
    "close_relinked",
    "close_buried",
    "close_written_for_brokers",
    "close_levels_written",
    "close_wheel_restored",
    "topics_json_written",
    "commit_written",
    "backup_segment_copied",
    "backup_copied",
    "backup_written",
    "restore_built",
    "enqueue_far_written",
    "far_moved_down",
    "far_relinked",
    "far_tidied",
    "far_unlinked",
    "far_handed_over",
    "checkpoint_far_written",
)

LEASE_NAMES = (
    "lease_appended",
    "receive_answered",
    "ack_appended",
    "requeue_appended",
    "lease_progress_committed",
    "recover_leases_committed",
    "replace_appended",
    "replace_answered",
    "unique_appended",
    "unique_answered",
    "recurring_defined",
    "recurring_run_put",
    "recurring_ended",
    "recurring_run_cancelled",
    "recurring_saved",
)
"""Fail points of leases, puts with a key, and recurring messages."""

HALF_NAMES = ("half_appended",)
"""Fail points of half messages."""

SHARD_NAMES = (
    "stage_file_written",
    "stage_synced",
    "manifest_checked",
    "manifest_committed",
    "manifest_replayed",
    "shard_ingest_begun",
    "shard_ingest_durable",
    "shard_files_dropped",
)
"""Fail points of sharded stores: timerstore/shards."""

DELETION_NAMES = (
    "delete_topic_begun",
    "delete_topic_cancelled",
    "delete_topic_appended",
    "dispatch_topic_deleted",
    "delete_topic_offsets_removed",
    "delete_topic_ended",
)
"""Fail points of `delete_topic`, in their order."""

ALL_NAMES = frozenset((*NAMES, *LEASE_NAMES, *HALF_NAMES, *SHARD_NAMES, *DELETION_NAMES))

hook: Callable[[str], None] | None = None
"""Called with a point's name when it is reached; tests set it."""


def reach(name: str) -> None:
    """Call the hook, if there is one, with the name of a point."""
    if hook is not None:
        assert name in ALL_NAMES, f"a fail point that is not in NAMES: {name}"
        hook(name)
