"""The recurring service: keeps the next run of each definition pending on the timing wheel.

    planned 02:30 (pending)   02:30: delivered by the wheel   planned tomorrow 02:30 (pending)

A run is missed if its time passed before it was planned. Causes are a closed store, a suspended
machine, a clock that was set forward, and an interval shorter than a pause of the process.

Thread safety: the service runs in the thread "recurring"; `plan` may be called by any thread.
Locking: `lock` protects planning, defining and ending.
Invariants:
    1. Runs of a definition are put in the order of their times, each once.
Raises: FullError and FlowControlError are retried.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable, Iterable

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.service import Service, idle_until
from timerstore._engine.format import recurring_json
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.queues.core import Core
from timerstore._engine.recurring.definition import Rule, rule_of
from timerstore._engine.storage.disk import Disk
from timerstore.errors import MessageError
from timerstore.types.messages import parse_properties

# --- definitions ---
# All definitions of recurring messages in a store, and the progress of each, on disk.
#
# Thread safety: any thread.
# Locking: `_save_lock` during a write of the file. The append lock protects the definitions in
# memory: the progress of a definition changes in the critical section that appends its run.
# Invariants:
#     1. A run that the file counts is durable in the log.
#     2. A checkpoint saves the file before its watermark. Opening reads the runs after the
#        watermark from the log. So no crash repeats or loses a run.
# Raises: FullError, after which the call can be repeated. MessageError if the file would be too
#     large.
# On-disk format: config/timerstoreRecurring.json (format/recurring_json.py), replaced as a whole.
# See also: docs/decisions/0009-leases-replace-and-recurring.md.


PROPERTY = "TS_EVERY"
"""Property of each run's message: `<name> <time of the run, epoch ms>`."""


class Definitions(NotCopyable):
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


# --- planner ---


_RUNS_MAX = 100
"""Runs of one definition that one step puts, at most."""
_NEVER = 2**62


class Planner(Service):
    """Plans the runs of one store."""

    name = "recurring"

    def __init__(
        self,
        core: Core,
        definitions: Definitions,
        put_runs: Callable[[Definition, list[int]], None],
    ) -> None:
        """`put_runs` puts the next runs of a definition, given their times, and records them."""
        super().__init__(core.metrics, core.signals)
        self._clock = core.clock
        self._log = core.log
        self._definitions = definitions
        self._delay_ms_max = core.config.delay_ms_max
        self._put_runs = put_runs
        self.lock = Lock()
        self._wake_ms: int | None = None
        self._following: dict[str, tuple[Definition, int | None]] = {}
        """Time of the run after the planned one, by the definition's name."""

    def step(self) -> bool:
        """Plan the next runs of all definitions whose last run has come due."""
        self._log.check_alive()
        with self.lock:
            now_ms = self._clock.now_ms
            wakes, worked = [], False
            for definition in self._definitions.all():
                if not definition.is_ended:
                    wake_ms = self._wake_of(definition)
                    if wake_ms <= now_ms:
                        self._plan(definition, now_ms)
                        worked = True
                    else:
                        wakes.append(wake_ms)
            self._wake_ms = min(wakes, default=None)
            return worked

    def plan(self, name: str) -> None:
        """Plan the next run of one definition, if its time has come.

        It does not plan the runs of other definitions: only the service does, where it runs.
        """
        self._log.check_alive()
        with self.lock:
            now_ms = self._clock.now_ms
            definition = self._definitions.find(name)
            if (
                definition is not None
                and not definition.is_ended
                and self._wake_of(definition) <= now_ms
            ):
                self._plan(definition, now_ms)

    def idle_s(self) -> float | None:
        """Return the time until the next run must be planned."""
        if self._wake_ms is None:
            return None
        return idle_until(self._clock, self._wake_ms)

    def _wake_of(self, definition: Definition) -> int:
        """Return when the definition's next run is to be planned.

        This is the time of the run before it, or later if the next run is still further ahead than
        a timer may be.
        """
        if definition.planned_ms >= _NEVER:
            return _NEVER
        known = self._following.get(definition.name)
        if known is None or known[0] != definition:
            following_ms = rule_of(definition).after(definition.planned_ms)
            known = self._following[definition.name] = definition, following_ms
        following = known[1]
        if following is None:
            return _NEVER
        begin_ms = definition.planned_ms if definition.run_count else 0
        return max(begin_ms, following - self._delay_ms_max)

    def _plan(self, definition: Definition, now_ms: int) -> None:
        rule = rule_of(definition)
        runs = runs_of(rule, definition.missed, definition.planned_ms, now_ms)
        latest_ms = now_ms + self._delay_ms_max
        reachable = [run for run in runs if run <= latest_ms]
        if reachable:
            self._put_runs(definition, reachable)
        elif runs:  # every missed run is skipped; the next one is too far ahead to be planned now
            self.leave_out(definition, now_ms)
        else:
            self._definitions.set(
                definition._replace(planned_ms=_NEVER, run_ms=definition.last_run_ms)
            )

    def leave_out(self, definition: Definition, now_ms: int) -> None:
        """Skip all runs whose times have passed."""
        last_ms = rule_of(definition).last_until(now_ms, definition.planned_ms)
        if last_ms is not None:
            self._definitions.set(
                definition._replace(planned_ms=last_ms, run_ms=definition.last_run_ms)
            )


def runs_of(rule: Rule, missed: str, planned_ms: int, now_ms: int) -> list[int]:
    """Return the times of the runs to put after `planned_ms`.

    These are the missed runs that the policy `missed` keeps, then the next run.
    """
    following = rule.after(planned_ms)
    if following is None or following >= now_ms:
        return [] if following is None else [following]
    runs: list[int] = []
    if missed == "all":
        while following is not None and following <= now_ms and len(runs) < _RUNS_MAX:
            runs.append(following)
            following = rule.after(following)
        return runs if following is None or len(runs) == _RUNS_MAX else [*runs, following]
    if missed == "one":
        last_ms = rule.last_until(now_ms, planned_ms)
        assert last_ms is not None, "one was missed"
        runs.append(last_ms)
    following = rule.after(now_ms)
    return runs if following is None else [*runs, following]
