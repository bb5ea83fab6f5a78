"""Check our own side files: watermark, states, counts and message ids of the last checkpoint."""

from collections.abc import Mapping

import numpy as np

from timerstore._engine.dedupe import read_ids
from timerstore._engine.format import counts_json, state_sector, watermark
from timerstore._engine.format.counts_json import Counts
from timerstore._engine.format.state_sector import CHUNK_IDS, PAYLOAD_BYTES, SECTOR_BYTES
from timerstore._engine.maintenance import id_states
from timerstore._engine.maintenance.findings import at_offset
from timerstore._engine.maintenance.id_states import NAMES, Packed
from timerstore._engine.maintenance.store_view import StoreView
from timerstore._engine.queues.routes import Routes
from timerstore.errors import TimerStoreError

_STATES_AT = 32  # in a sector


def check_watermark(view: StoreView) -> None:
    """Check that the file of an open store has its last completed watermark, and that this speaks
    of nothing that does not exist. The watermark of a directory was read already.
    """
    mark, side, engine, findings = view.mark, view.side, view.engine, view.findings
    if mark is None or side is None or engine is None:
        return
    config, path = view.config, view.tree.watermark
    try:
        found = watermark.read(side.watermark or b"")
    except TimerStoreError as error:
        findings.raised("watermark", path, error)
        return
    if found != mark:
        at = mark.sequence % 2 * watermark.SLOT_BYTES
        findings.add("watermark", at_offset(path, at), mark, found)
    wheel, timer_log = engine.wheel, engine.timer_log
    limits = (
        ("log end", mark.log_end, engine.log.durable),
        ("timer log end", mark.timer_log_end, timer_log.end),
        ("timer queue offset", mark.timer_queue_offset, timer_log.linked_offset),
        ("timer queue offset", mark.timer_queue_offset, engine.timer_route.queue.count),
        # A clock that is set back moves the wheel's position before the next checkpoint does.
        ("read slot", mark.replay_slot, max(wheel.read_slot, wheel.completed_replay_slot)),
        ("timer id end", mark.timer_id_end, int(engine.log.native.timer_route.next_offset)),
    )
    for what, got, limit in limits:
        if got > limit:
            findings.add(f"watermark: {what}", path, f"at most {limit}", got)
    same = (
        ("log begin", mark.log_begin, engine.log.segments.begin),
        ("timer log begin", mark.timer_log_begin, timer_log.segments.begin),
        ("store id", mark.store_id, engine.store_id),
        ("precision", mark.precision_ms, config.precision_ms),
        ("wheel slot count", mark.wheel_slot_count, config.wheel_slot_count),
    )
    for what, got, wanted in same:
        if got != wanted:
            findings.add(f"watermark: {what}", path, wanted, got)


def check_states_file(
    view: StoreView, wanted: Packed | None, *, only_known: bool, floor: int
) -> None:
    """Check that each chunk has a valid sector, that their digest is the watermark's, and that the
    states are those that the log requires there (`wanted`; None: not known).
    """
    mark, side, findings, path = view.mark, view.side, view.findings, view.tree.state
    if mark is None or side is None:
        return
    raw = side.state
    if raw is None:
        findings.add(f"states{view.derived()}", path, "a file", "none")
        return
    crcs = np.zeros(mark.state_chunk_count, np.uint64)
    states = np.zeros(mark.state_chunk_count * PAYLOAD_BYTES, np.uint8)
    which = np.zeros(mark.state_chunk_count, np.int64)
    is_whole = True
    entry = counts_json.read_counts(side.counts, mark.log_end, mark.sequence)
    past = {c for pair in (() if entry is None else entry.past) for c in range(*pair)}
    for chunk in range(mark.state_chunk_count):
        if chunk in past:
            continue
        at = 2 * chunk * SECTOR_BYTES
        picked = state_sector.pick(raw[at : at + 2 * SECTOR_BYTES], chunk, mark.log_end)
        if picked is None:
            is_whole = False
            findings.add(
                f"states: chunk {chunk} has no valid sector{view.derived()}",
                at_offset(path, at),
                f"one whose CRC fits, of a log end up to {mark.log_end}",
                "none",
            )
            continue
        crcs[chunk], which[chunk] = picked.crc, picked.which
        begin = chunk * PAYLOAD_BYTES
        states[begin : begin + PAYLOAD_BYTES] = np.frombuffer(picked.payload, np.uint8)
    digest = state_sector.digest(crcs)
    if is_whole and digest != mark.state_digest:
        findings.add(f"states: digest{view.derived()}", path, mark.state_digest, digest)
    findings.count("state chunks", len(crcs))
    if wanted is None or not is_whole:
        return
    for timer_id, one, other in id_states.differing(
        wanted, states, only_known=only_known, floor=floor
    ):
        chunk, k = divmod(timer_id, CHUNK_IDS)
        at = 2 * chunk * SECTOR_BYTES + _STATES_AT + k // 4
        if chunk < len(which):
            at += int(which[chunk]) * SECTOR_BYTES
        findings.add(
            f"states: timer id {timer_id} as of log end {mark.log_end}",
            at_offset(path, at),
            NAMES[one],
            NAMES[other],
        )


def check_counts_file(
    view: StoreView,
    entry: Counts | None,
    routes: Routes | None,
    wanted: Mapping[str, Mapping[int, int]] | None,
) -> None:
    """Check that the file has the counts of the watermark, and that they are those that the log
    requires: by name, then by index of route. `wanted` is None if that is not known.
    """
    mark = view.mark
    if mark is None or view.side is None:
        return
    what = f"counts as of log end {mark.log_end}"
    if entry is None:
        view.findings.add(f"{what}{view.derived()}", view.tree.counts, "an entry", "no entry")
        return
    if wanted is None or routes is None:
        return
    for name, by_index in wanted.items():
        found = getattr(entry, name)
        expected: counts_json.Pending = {}
        for index, count in by_index.items():
            if count:
                route = routes.by_index[index]
                expected.setdefault(route.topic, {})[route.queue_id] = count
        if found != expected:
            view.findings.add(f"{what}: {name}", view.tree.counts, expected, found)


def check_message_ids(view: StoreView, entry: Counts | None) -> None:
    """Check that a closed store has the message ids that its counts speak of."""
    if entry is None or view.disk.exists(view.tree.abort):
        return
    if read_ids(view.disk, view.tree, entry.ids) is None:
        path, wanted = view.tree.ids(entry.ids.number), f"{entry.ids.bytes} bytes as written"
        view.findings.add("message ids", path, wanted, "others, or fewer")
