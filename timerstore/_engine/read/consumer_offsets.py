"""Offsets: how far each group has come in each queue, on disk.

Data:     config/consumerOffset.json (format/consumer_offset_json.py), replaced whole.
Threads:  any; whoever waits for a commit writes it, and what others have asked for meanwhile.
Locks:    `_write_lock`, then `_lock`. The first is held over a sync, like the commit log's own:
          it is what the others wait for.
Holds:    (1) what `settle` returned for is durable, whatever `flush` the store has: a group that
          lost its place would see messages again that it was told it need not see; (2) commits of
          one queue take effect in the order in which they were asked for; (3) after `clamp` no
          offset lies beyond its queue's end, so that what comes next is not skipped.
Fails:    FullError: nothing changed, ask again; FailedError for good; CorruptError on opening.
Source:   docs/file-format.md; docs/exactly-once.md; docs/decisions/0005-long-poll.md.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import consumer_offset_json, json_text
from timerstore._engine.format.consumer_offset_json import SEPARATOR, ConsumerOffsets, entry_name
from timerstore._engine.format.store_paths import Tree, backup_of
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.disk import Disk
from timerstore.clock import Clock
from timerstore.errors import CorruptError, FailedError, ReentrantCallError, TimerStoreError

Key = tuple[str, str]
"""Topic and group."""


def read_file(disk: Disk, tree: Tree) -> ConsumerOffsets:
    """Read the file, or its older copy; CorruptError where neither can be."""
    path = tree.consumer_offset_json
    return consumer_offset_json.read(disk.read_small(path), disk.read_small(backup_of(path)))


class Beyond(NamedTuple):
    """An offset that lies beyond its queue's end."""

    topic: str
    group: str
    queue_id: int
    offset: int
    end: int


def beyond(file: ConsumerOffsets, routes: Routes) -> Iterator[Beyond]:
    """Give what lies beyond its queue's end, which is 0 where a known topic has no such queue.

    An entry of a topic that is not known here is left to whoever wrote it.
    """
    for name, offsets in file.table.items():
        topic, _, group = name.partition(SEPARATOR)
        if not group or not routes.full_queue_count(topic):
            continue
        for queue_id, offset in offsets.items():
            route = routes.get(topic, queue_id)
            end = 0 if route is None else route.queue.count
            if offset > end:
                yield Beyond(topic, group, queue_id, offset, end)


class Asked:
    """A commit on its way."""

    __slots__ = ("is_done", "key", "offsets")

    def __init__(self, key: Key, offsets: Mapping[int, int]) -> None:
        self.key = key
        self.offsets = dict(offsets)
        self.is_done = False  # written under `_write_lock`


class Offsets(Owner):
    """The committed offsets of one store."""

    def __init__(
        self,
        disk: Disk,
        tree: Tree,
        clock: Clock,
        check_alive: Callable[[], None],
        fail: Callable[[TimerStoreError], None],
    ) -> None:
        self._disk = disk
        self._tree = tree
        self._clock = clock
        self._check_alive = check_alive
        self._fail = fail
        self._lock = Lock()
        self._write_lock = Lock()
        self._asked: list[Asked] = []  # under `_lock`, in order; and the last ones that are done
        path = tree.consumer_offset_json
        try:
            self._file = read_file(disk, tree)
        except CorruptError as error:
            raise CorruptError(
                f"committed offsets cannot be read: {error}",
                where=path,
                wanted="the file, its .bak, or neither: then every group begins anew",
            ) from error

    def committed(self, topic: str, group: str) -> dict[int, int]:
        """Give the offset of the next message for each queue in which the group has committed."""
        return dict(self._file.table.get(entry_name(topic, group), {}))

    def known(self) -> list[Key]:
        """Give every topic and group that a commit was made for."""
        names = (name.partition(SEPARATOR) for name in self._file.table)
        return [(topic, group) for topic, _, group in names if group]

    def clamp(self, routes: Routes) -> None:
        """Take back what lies beyond its queue's end; durable on return. Before any append."""
        changes: dict[Key, dict[int, int]] = {}
        for one in beyond(self._file, routes):
            changes.setdefault((one.topic, one.group), {})[one.queue_id] = one.end
        if changes:
            self._write(changes)

    def ask(self, topic: str, group: str, offsets: Mapping[int, int]) -> Asked:
        """Begin a commit; it takes its place among all commits now, `settle` waits for it."""
        asked = Asked((topic, group), offsets)
        with self._lock:
            self._asked.append(asked)
        return asked

    def settle(self, asked: Asked) -> None:
        """Return when a commit is durable; one write serves all that were asked for before it."""
        try:
            self._settle(asked)
        except ReentrantCallError:
            asked.is_done = True  # a refused commit is not part of a later one
            raise

    def _settle(self, asked: Asked) -> None:
        with self._write_lock:
            if asked.is_done:
                return
            try:
                with self._lock:
                    together = [one for one in self._asked if not one.is_done]
                    self._asked = list(together)  # until they are done, whatever ends this
                changes: dict[Key, dict[int, int]] = {}
                for one in together:
                    changes.setdefault(one.key, {}).update(one.offsets)
                self._check_alive()
                self._write(changes)
            except BaseException as error:  # Ctrl-C, too
                asked.is_done = True  # so; the others try for themselves, and hear for themselves
                if isinstance(error, FailedError):
                    self._fail(error)
                raise
            for one in together:
                one.is_done = True
        reach("commit_written")

    def _write(self, changes: Mapping[Key, Mapping[int, int]]) -> None:
        new = self._file.with_offsets(changes, self._clock.now_ms)
        self._disk.make_directory(self._tree.config)
        text = json_text.with_checksum(consumer_offset_json.write(new))
        self._disk.write_small(self._tree.consumer_offset_json, text)
        self._file = new  # not before: what is not durable is not committed
