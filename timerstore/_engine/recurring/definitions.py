"""All definitions of recurring messages in a store, and the progress of each, on disk.

Thread safety: any thread.
Locking: `_save_lock` during a write of the file. The append lock protects the definitions in
memory: the progress of a definition changes in the critical section that appends its run.
Invariants:
    1. A run that the file counts is durable in the log.
    2. A checkpoint saves the file before its watermark. Opening reads the runs after the watermark
       from the log. So no crash repeats or loses a run.
Raises: FullError, after which the call can be repeated. MessageError if the file would be too
    large.
On-disk format: config/timerstoreRecurring.json (format/recurring_json.py), replaced as a whole.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
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
from timerstore.errors import MessageError
from timerstore.messages import parse_properties

PROPERTY = "TS_EVERY"
"""Property of each run's message: `<name> <time of the run, epoch ms>`."""


class Definitions(Owner):
    """The definitions of one store."""

    def __init__(self, disk: Disk, tree: Tree, log: CommitLog, saved: list[Definition]) -> None:
        """`saved`: the definitions in the file."""
        self._disk = disk
        self._tree = tree
        self._log = log
        self._save_lock = Lock()
        self._is_changed = False
        self._by_name = {one.name: one for one in saved}
        self._saved_tokens = frozenset(one.token for one in saved)
        self._sizes: dict[str, int] = {}  # by token: the most bytes in the file

    # --- in memory ---

    def all(self) -> list[Definition]:
        """Return every definition, including those that are being ended."""
        with self._log.lock:
            return list(self._by_name.values())

    def copy(self) -> list[Definition]:
        """Return the current state of every definition in the file; call it under the append lock.

        A definition whose first save is still running is left out, because the save may fail. No
        run of it is in the log yet.
        """
        return [one for one in self._by_name.values() if one.token in self._saved_tokens]

    def find(self, name: str) -> Definition | None:
        """Return the definition with this name; None if there is no such definition."""
        with self._log.lock:
            return self._by_name.get(name)

    def check_size(self, definition: Definition) -> None:
        """Raise MessageError if the file could become too large to be read with this definition.

        The numbers of every definition count with their most digits: a later run must not make the
        file too large. Call it under the planner's lock.
        """
        with self._log.lock:
            found = (self._by_name | {definition.name: definition}).values()
        self._sizes = {
            one.token: self._sizes.get(one.token) or recurring_json.bytes_max(one) for one in found
        }
        size, limit = recurring_json.file_bytes([*self._sizes.values()]), self._disk.small_bytes_max
        if size > limit:
            raise MessageError(
                "recurring messages: their file would be too large; use smaller bodies, or "
                "cancel_every others first",
                where=self._tree.recurring_json,
                wanted=f"{limit} bytes or fewer",
                got=size,
            )

    def set(self, definition: Definition) -> None:
        """Add or replace a definition; `save` makes that durable."""
        with self._log.lock:
            self._by_name[definition.name] = definition
            self._is_changed = True

    def remove(self, name: str) -> None:
        """Remove a definition; `save` makes that durable."""
        with self._log.lock:
            self._is_changed |= self._by_name.pop(name, None) is not None

    def record_runs(self, name: str, run_count: int, planned_ms: int) -> None:
        """Record how many runs were put, and the time of the last one.

        Call it in the critical section of the append lock that appends the runs.
        """
        definition = self._by_name[name]
        self._by_name[name] = definition._replace(
            run_count=run_count, planned_ms=planned_ms, run_ms=planned_ms
        )
        self._is_changed = True

    def save(self) -> None:
        """Write the file if a definition has changed; durable on return."""
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
                self._saved_tokens = frozenset(one.token for one in found)
            except BaseException:
                self._is_changed = True
                raise
            reach("recurring_saved")

    # --- opening ---

    def recover(self, parts: Callable[[], Iterable[Scan]], text_at: Callable[[int], bytes]) -> None:
        """Count the runs in a part of the log that the file does not count; durable on return.

        parts: scanned records of that part.
        text_at: returns the property text of the record at a log offset.
        """
        running = [one for one in self._by_name.values() if not one.is_ended]
        if not running:
            return
        rows = [part[["identity", "log_offset"]].copy() for part in parts()]
        if not rows:
            return
        found = np.concatenate(rows)
        found = found[np.argsort(found["identity"], kind="stable")]
        identities = np.ascontiguousarray(found["identity"])
        for definition in running:
            number, planned_ms = definition.run_count, definition.planned_ms
            while (at := self._row_of(identities, definition, number + 1)) is not None:
                text = text_at(int(found["log_offset"][at]))
                run = parse_properties(text).get(PROPERTY, "").rpartition(" ")[2]
                if not run.isdecimal():
                    break  # another message with the same hash
                number, planned_ms = number + 1, int(run)
            if number > definition.run_count:
                self.record_runs(definition.name, number, planned_ms)
        self.save()

    def _row_of(
        self,
        identities: "np.ndarray[tuple[int], np.dtype[np.uint64]]",
        definition: Definition,
        number: int,
    ) -> int | None:
        """Return the row of a run, by the hash of its topic and id; None: it is not there."""
        name = f"{definition.topic}+{definition.message_id(number)}".encode()
        wanted = np.uint64(lib.ts_identity(name, len(name)))
        at = int(np.searchsorted(identities, wanted))
        return at if at < len(identities) and identities[at] == wanted else None
