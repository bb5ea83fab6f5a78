"""Check of our own side files: watermark, states, counts, as of the last completed checkpoint."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from timerstore._engine.format import counts_json, state_sector, watermark
from timerstore._engine.format.state_sector import CHUNK_IDS, PAYLOAD_BYTES, SECTOR_BYTES
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.maintenance import id_states
from timerstore._engine.maintenance.findings import Findings, at_offset
from timerstore._engine.maintenance.id_states import NAMES, Packed
from timerstore._engine.maintenance.live_store import LiveStore
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.disk import Disk
from timerstore.config import StoreConfig
from timerstore.errors import TimerStoreError

_STATES_AT = 32  # in a sector


class SideFiles(NamedTuple):
    """The side files' bytes, between two checkpoints."""

    mark: Watermark | None
    watermark: bytes | None
    state: bytes | None
    counts: bytes | None


def read_side(disk: Disk, tree: Tree, mark: Watermark | None) -> SideFiles:
    """Read them; no checkpoint may run meanwhile."""
    return SideFiles(
        mark,
        disk.read_small(tree.watermark),
        read_states(disk, tree),
        disk.read_small(tree.counts),
    )


def read_states(disk: Disk, tree: Tree) -> bytes | None:
    """Read the state file, which need not be small."""
    if not disk.exists(tree.state):
        return None
    file = disk.open(tree.state, read_only=True)
    return file.read(0, file.size())


def check_watermark(
    findings: Findings,
    config: StoreConfig,
    tree: Tree,
    store: LiveStore,
    store_id: int,
    side: SideFiles,
    timer_queue_count: int,
) -> None:
    """The file holds the last completed watermark, and that says nothing that is not there."""
    mark = side.mark
    if mark is None:
        return
    try:
        found = watermark.read(side.watermark or b"")
    except TimerStoreError as error:
        findings.raised("watermark", tree.watermark, error)
        return
    if found != mark:
        at = mark.sequence % 2 * watermark.SLOT_BYTES
        findings.add("watermark", at_offset(tree.watermark, at), mark, found)
    limits = (
        ("log end", mark.log_end, store.log.durable),
        ("timer log end", mark.timer_log_end, store.timer_log.end),
        ("timer queue offset", mark.timer_queue_offset, store.timer_log.linked_offset),
        ("timer queue offset", mark.timer_queue_offset, timer_queue_count),
        # If the clock is set back, `wheel.read_slot` follows it before the next checkpoint does.
        (
            "read slot",
            mark.replay_slot,
            max(store.wheel.read_slot, store.wheel.completed_replay_slot),
        ),
        ("timer id end", mark.timer_id_end, int(store.log.native.timer_route.next_offset)),
    )
    for what, got, limit in limits:
        if got > limit:
            findings.add(f"watermark: {what}", tree.watermark, f"at most {limit}", got)
    same = (
        ("log begin", mark.log_begin, store.log.segments.begin),
        ("timer log begin", mark.timer_log_begin, store.timer_log.segments.begin),
        ("store id", mark.store_id, store_id),
        ("precision", mark.precision_ms, config.precision_ms),
        ("wheel slot count", mark.wheel_slot_count, config.wheel_slot_count),
    )
    for what, got, wanted in same:
        if got != wanted:
            findings.add(f"watermark: {what}", tree.watermark, wanted, got)


def check_states_file(
    findings: Findings,
    tree: Tree,
    side: SideFiles,
    wanted: Packed | None,
    *,
    only_known: bool,
    floor: int,
) -> None:
    """Each chunk has a sector that counts, their digest is the watermark's, and the states are
    those of the fold at its log end (`wanted`; None: not known).
    """
    mark, raw = side.mark, side.state
    if mark is None:
        return
    if raw is None:
        findings.add("states", tree.state, "a file", "none")
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
                f"states: chunk {chunk} has no sector that counts",
                at_offset(tree.state, at),
                f"one whose CRC fits, of a log end up to {mark.log_end}",
                "none",
            )
            continue
        crcs[chunk], which[chunk] = picked.crc, picked.which
        begin = chunk * PAYLOAD_BYTES
        states[begin : begin + PAYLOAD_BYTES] = np.frombuffer(picked.payload, np.uint8)
    digest = state_sector.digest(crcs)
    if is_whole and digest != mark.state_digest:
        findings.add("states: digest", tree.state, mark.state_digest, digest)
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
            at_offset(tree.state, at),
            NAMES[one],
            NAMES[other],
        )


def check_counts_file(
    findings: Findings,
    tree: Tree,
    routes: Routes,
    side: SideFiles,
    wanted: Mapping[str, Mapping[int, int]],
) -> None:
    """The counts as of the watermark are the fold's there: by name, then by index of route."""
    if side.mark is None:
        return
    entry = counts_json.read_counts(side.counts, side.mark.log_end, side.mark.sequence)
    for name, by_index in wanted.items():
        found = "no entry" if entry is None else getattr(entry, name)
        expected: counts_json.Pending = {}
        for index, count in by_index.items():
            if count:
                route = routes.by_index[index]
                expected.setdefault(route.topic, {})[route.queue_id] = count
        if found != expected:
            what = f"counts as of log end {side.mark.log_end}: {name}"
            findings.add(what, tree.counts, expected, found)
