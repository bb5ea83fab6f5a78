"""Check of config/consumerOffset.json: no group is beyond the end of a queue."""

from timerstore._engine.format.consumer_offset_json import ConsumerOffsets
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.maintenance.findings import Findings
from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.consumer_offsets import offsets_past_end, read_file
from timerstore._engine.storage.disk import Disk
from timerstore.errors import CorruptError


def read_offsets(findings: Findings, disk: Disk, tree: Tree) -> ConsumerOffsets:
    """Read the file; before the queues are looked at, which only grow."""
    try:
        return read_file(disk, tree)
    except CorruptError as error:
        findings.raised("committed offsets", tree.consumer_offset_json, error)
        return ConsumerOffsets()


def check_offsets(findings: Findings, tree: Tree, routes: Routes, file: ConsumerOffsets) -> None:
    """What a group would skip is found."""
    findings.count("committed offsets", sum(len(offsets) for offsets in file.table.values()))
    for one in offsets_past_end(file, routes):
        findings.add(
            f"committed offset of group {one.group}, topic {one.topic} queue {one.queue_id}",
            tree.consumer_offset_json,
            f"at most {one.end}",
            one.offset,
        )
