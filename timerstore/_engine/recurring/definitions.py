"""Definitions: what is put again and again, on disk, and how far each is.

Data:     config/timerstoreRecurring.json (format/recurring_json.py), replaced whole.
Threads:  any.
Locks:    `_save_lock` over a write; the append lock for what is known: how far a definition is, is
          noted in the hold that places its run.
Holds:    (1) what the file says was put is durable in the log; (2) a checkpoint saves what it is to
          cover before its watermark; what lies behind that is read on opening. So nothing is put
          twice, and nothing left out, whatever dies.
Fails:    FullError: ask again; CorruptError on opening.
Source:   docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable, Iterable

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import recurring_json
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.storage.disk import Disk
from timerstore.errors import CorruptError
from timerstore.messages import parse_properties

PROPERTY = "TS_EVERY"
"""On each run's message: `<name> <time of the run, ms>`."""


class Definitions(Owner):
    """Of one store."""

    def __init__(self, disk: Disk, tree: Tree, log: CommitLog) -> None:
        self._disk = disk
        self._tree = tree
        self._log = log
        self._save_lock = Lock()
        self._is_changed = False
        try:
            read = recurring_json.read(disk.read_small(tree.recurring_json))
        except CorruptError as error:
            raise CorruptError(
                f"what recurs cannot be read: {error}",
                where=tree.recurring_json,
                wanted="the file, or none: then nothing recurs",
            ) from error
        self._by_name = {one.name: one for one in read}
        self._saved = frozenset(one.token for one in read)  # tokens of those that are in the file

    # --- what there is ---

    def all(self) -> list[Definition]:
        """Give every definition, those that end with them."""
        with self._log.lock:
            return list(self._by_name.values())

    def copy(self) -> list[Definition]:
        """Give every definition that the file has, as it is now: under the append lock. One whose
        first save is on its way is left out, as that may fail: no run of it is in the log yet.
        """
        return [one for one in self._by_name.values() if one.token in self._saved]

    def find(self, name: str) -> Definition | None:
        """Give one by its name."""
        with self._log.lock:
            return self._by_name.get(name)

    def set(self, one: Definition) -> None:
        """Add one, or change it; `save` makes that last."""
        with self._log.lock:
            self._by_name[one.name] = one
            self._is_changed = True

    def remove(self, name: str) -> None:
        """Take one out; `save` makes that last."""
        with self._log.lock:
            self._is_changed |= self._by_name.pop(name, None) is not None

    def note(self, name: str, run_count: int, planned_ms: int) -> None:
        """So many runs are put, the last for this time: under the append lock, in their hold."""
        one = self._by_name[name]
        self._by_name[name] = one._replace(
            run_count=run_count, planned_ms=planned_ms, run_ms=planned_ms
        )
        self._is_changed = True

    def save(self) -> None:
        """Have the file say what there is; durable on return."""
        with self._save_lock:
            with self._log.lock:
                if not self._is_changed:
                    return
                self._is_changed = False
                found, log_end = list(self._by_name.values()), self._log.end
            try:
                self._log.sync_through(log_end)
                self._disk.make_directory(self._tree.config)
                self._disk.write_small(self._tree.recurring_json, recurring_json.write(found))
                self._saved = frozenset(one.token for one in found)
            except BaseException:
                self._is_changed = True
                raise
            reach("recurring_saved")

    # --- opening ---

    def recover(self, parts: Callable[[], Iterable[Scan]], text_at: Callable[[int], bytes]) -> None:
        """Take in the runs that are in a part of the log; durable on return."""
        running = [one for one in self._by_name.values() if not one.is_ended]
        if not running:
            return
        rows = [part[["identity", "log_offset"]].copy() for part in parts()]
        if not rows:
            return
        found = np.concatenate(rows)
        found = found[np.argsort(found["identity"], kind="stable")]
        identities = np.ascontiguousarray(found["identity"])
        for one in running:
            number, planned_ms = one.run_count, one.planned_ms
            while (at := self._row_of(identities, one, number + 1)) is not None:
                text = text_at(int(found["log_offset"][at]))
                run = parse_properties(text).get(PROPERTY, "").rpartition(" ")[2]
                if not run.isdecimal():
                    break  # another message with the same hash
                number, planned_ms = number + 1, int(run)
            if number > one.run_count:
                self.note(one.name, number, planned_ms)
        self.save()

    def _row_of(
        self,
        identities: "np.ndarray[tuple[int], np.dtype[np.uint64]]",
        one: Definition,
        number: int,
    ) -> int | None:
        name = f"{one.topic}+{one.message_id(number)}".encode()
        wanted = np.uint64(lib.ts_identity(name, len(name)))
        at = int(np.searchsorted(identities, wanted))
        return at if at < len(identities) and identities[at] == wanted else None
