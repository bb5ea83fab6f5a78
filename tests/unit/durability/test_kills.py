"""After a kill at any moment an opening answers only when what it found is on the disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.amounts import sample
from tests.support.bench import DAY, NOW, Bench, small
from tests.support.durable.files import BARRIERS, RECOVERED, RECOVERY_BARRIERS
from tests.support.durable.recorder import Recorder
from tests.support.durable.recording import recording
from timerstore._engine.base import failpoints

LATER_MS = NOW + 2 * DAY
CONFIG = small(
    flush="sync", far_wheel="own", retention_ms=3_600_000, dedupe_window_ms=60_000,
    checkpoint_log_bytes=1 << 20,
)  # fmt: skip
_POINTS = (
    "log_half_swapped", "log_rolled", "log_written_out", "log_synced", "segment_created",
    "dispatch_queues_written", "dispatch_index_rolled", "enqueue_units_written", "deliver_placed",
    "cancel_appended", "reschedule_appended", "checkpoint_taken", "checkpoint_log_synced",
    "checkpoint_queues_synced", "checkpoint_index_synced", "checkpoint_index_saved",
    "checkpoint_states_written", "checkpoint_wheel_written", "checkpoint_far_written",
    "checkpoint_ids_written", "checkpoint_counts_written", "checkpoint_watermark_written",
    "recover_marked_open", "recover_wheel_lengthened", "enqueue_far_written", "far_moved_down",
    "close_checkpointed", "close_relinked", "close_buried", "close_written_for_brokers",
    "close_levels_written", "close_wheel_restored", "topics_json_written", "commit_written",
)  # fmt: skip


def work(root: Path) -> None:
    """Use every feature of a store, over two openings."""
    bench = Bench(root, CONFIG)
    for lap in range(2):
        for k in range(120):
            bench.store.put("t", b"%d" % k, delay=k % 9, keys=f"k{k}", message_id=f"m{lap}.{k}")
        bench.store.put("big", bytes(700_000), delay=30)
        first = bench.store.put("t", b"a", delay=20)
        bench.store.cancel(bench.store.put("t", b"b", delay=20))
        bench.store.put("t", b"level", level=2)
        bench.store.put("t", b"far", delay=3600)
        bench.turn(3000)
        bench.store.reschedule(first, delay=40)
        with bench.store.consumer("t", "g") as consumer:
            consumer.poll(max_count=5)
            consumer.commit()
        bench.turn(5000)
        bench.store.flush()
        bench.store.put("big", bytes(700_000), flush="async")
        bench.turn()
        bench.reopen()
    bench.turn(3_600_000)
    bench.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Recorder, dict[str, Path]]]:
    """Yield the files after a kill at the second pass of each fail point, or at its only pass."""
    disk = tmp_path_factory.mktemp("disk")
    found: dict[str, Path] = {}
    seen: dict[str, int] = {}
    with recording(disk, BARRIERS) as recorder, pytest.MonkeyPatch.context() as patch:

        def hook(name: str) -> None:
            if name not in _POINTS or seen.get(name, 0) == 3:
                return
            seen[name] = seen.get(name, 0) + 1
            found[name] = recorder.killed(disk / "store", disk / f"{name}.{seen[name]}")

        patch.setattr(failpoints, "hook", hook)
        work(disk / "store")
        patch.setattr(failpoints, "hook", None)
        recorder.barriers = RECOVERY_BARRIERS
        yield recorder, found


@pytest.mark.parametrize("point", sample(_POINTS, "points of a kill"))
def test_opening_after_a_kill_leaves_nothing_unsynced(
    killed: tuple[Recorder, dict[str, Path]], point: str, tmp_path: Path
) -> None:
    recorder, found = killed
    root = found[point]
    bench = Bench(root, CONFIG, LATER_MS)
    recorder.check(RECOVERED, root.name)
    cut = Bench(recorder.cut(root, tmp_path / "cut"), CONFIG, LATER_MS)
    assert cut.shown() == bench.shown()
    cut.close()
    bench.close()
