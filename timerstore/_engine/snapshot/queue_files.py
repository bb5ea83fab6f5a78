"""The files that name topics and queues: config/topics.json and the folders of consumequeue/."""

from collections.abc import Iterator
from pathlib import Path

from timerstore._engine.format import topics_json
from timerstore._engine.format.store_paths import Tree, backup_of, queue_number
from timerstore._engine.format.topics_json import Topics
from timerstore._engine.storage.disk import Disk

FILLER_SIZE = 0x7FFFFFFF
"""The size in units that a broker writes before the first message of a queue that does not begin
at 0."""


def read_topics(disk: Disk, tree: Tree) -> Topics:
    """Return the topics as their owner has written them. Raises CorruptError."""
    return topics_json.read(
        disk.read_small(tree.topics_json), disk.read_small(backup_of(tree.topics_json))
    )


def queue_folders(disk: Disk, tree: Tree) -> Iterator[tuple[str, int, Path]]:
    """Return (topic, queue, folder) of each consume queue that has a folder."""
    for name in disk.list(tree.queues):
        topic_folder = tree.queues / name
        for folder in disk.list(topic_folder) if disk.is_directory(topic_folder) else ():
            number = queue_number(folder)
            if number is not None and disk.is_directory(topic_folder / folder):
                yield name, number, topic_folder / folder
