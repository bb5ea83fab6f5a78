"""Recurring calls: put_every, recurring, cancel_every of one store.

    define      the file has it, then its first run is put        a crash between: it goes on
    end         the file says that it ends, then its run that waits is cancelled, then it goes
    open        what ends is ended; of runs that were due meanwhile and wait, those that are not
                wanted any more are cancelled, before the wheel turns

Threads:  any.
Locks:    the planner's; then those of Definitions and of the log.
Fails:    MessageError on arguments; FullError: nothing was made, and nothing ended, but for runs
          that were late; a kill after it may end what was to be ended. A run that finds no room is
          put later.
Source:   docs/decisions/0009-leases-replace-and-recurring.md.
"""

from contextlib import suppress
from typing import Any

import numpy as np

from timerstore._engine.base.column_batch import Rows
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.signals import Signals
from timerstore._engine.change.cancel import Canceller
from timerstore._engine.format.handle import Handle, decode
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.recurring import Definitions, Planner, Recurring, define, shown
from timerstore._engine.recurring.definitions import PROPERTY
from timerstore._engine.timer.handle_lookup import HandleLookup
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.write.append import Appender
from timerstore._engine.write.places import Destination, TrackedPlaces
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import MessageError, TimerStoreError
from timerstore.receipts import out_ms
from timerstore.reports import CancelResult


class _Noted(TrackedPlaces):
    """Places of runs; how far their definition is, is noted as they get them."""

    def __init__(self, definitions: Definitions, one: Definition, runs: list[int]) -> None:
        super().__init__(len(runs))
        self._definitions = definitions
        self._one = one
        self._runs = runs

    def placed(self, begin: int, end: int) -> None:  # noqa: ARG002 - all before are done
        """Under the append lock."""
        self._definitions.note(self._one.name, self._one.run_count + end, self._runs[end - 1])


class RecurringCalls(Owner):
    """Of one store."""

    def __init__(
        self,
        states: TimerStates,
        config: StoreConfig,
        signals: Signals,
        finder: HandleLookup,
        pending: PendingReader,
        canceller: Canceller,
        log: CommitLog,
        definitions: Definitions,
        metrics: Metrics,
        clock: Clock,
        appender: Appender,
        *,
        threads: bool,
    ) -> None:
        self._threads = threads
        self._is_started = False
        self._clock = clock
        self._appender = appender
        self._log = log
        self._definitions = definitions
        self.planner = Planner(
            metrics,
            signals,
            clock,
            log,
            definitions,
            config.delay_ms_max,
            self._put_runs,
        )
        self._states = states
        self._config = config
        self._finder = finder
        self._pending = pending
        self._canceller = canceller

    # --- the service ---

    def start(self) -> None:
        """Have the service run in a thread, where services do and anything recurs. Not where
        nothing is delivered: runs would gather, and come together once that is over.
        """
        runs = self._threads and not self._config.stop_dequeue
        with self.planner.lock:
            if runs and not self._is_started and self._definitions.all():
                self.planner.start()
                self._is_started = True

    # --- opening ---

    def prepare(self) -> None:
        """Before the wheel turns: what was due while nobody had the store open. Where it does not
        turn, the next opening decides.
        """
        now_ms, turns = self._clock.now_ms, not self._config.stop_dequeue
        due: dict[str, set[str]] = {}
        with self.planner.lock:
            for one in self._definitions.all():
                if one.is_ended:
                    self._end(one)
                elif turns and one.run_count and one.planned_ms <= now_ms and one.missed != "all":
                    self._thin_out(one, now_ms, due)
            self._definitions.save()

    def _thin_out(self, one: Definition, now_ms: int, due: dict[str, set[str]]) -> None:
        if one.missed == "skip":
            self._cancel_until(one, now_ms + 1)
        elif self._waits(one, now_ms, due):  # it is the one that comes
            self.planner.leave_out(one, now_ms)

    # --- the calls ---

    def put_every(self, topic: str, body: Any, **given: Any) -> Recurring:
        """As TimerStore.put_every."""
        now_ms = self._clock.now_ms
        made = define(self._config, now_ms, topic, body, **given)
        with self.planner.lock:
            there = self._definitions.find(made.name)
            if there is not None and not there.is_ended:
                if there.what != made.what:
                    raise MessageError(
                        f"name: {made.name!r} recurs already, as something else; cancel_every it "
                        "first, or take another name"
                    )
                return shown(there, now_ms)
            if there is not None:
                self._end(there)
            self._definitions.set(made)
            try:
                self._definitions.save()
            except BaseException:
                self._definitions.remove(made.name)
                raise
        reach("recurring_defined")
        try:
            self.planner.plan(made.name)
            self._log.sync_through(self._log.end)
        except TimerStoreError as error:
            if not error.retryable:
                raise
            # It recurs: the service puts the run when there is room.
        self.start()
        self.planner.wake()
        found = self._definitions.find(made.name)
        return shown(found if found is not None else made, now_ms)

    def shown(self) -> list[Recurring]:
        """As TimerStore.recurring."""
        now_ms = self._clock.now_ms
        found = [shown(one, now_ms) for one in self._definitions.all() if not one.is_ended]
        return sorted(found, key=lambda one: one.name)

    def cancel_every(self, name: object) -> bool:
        """As TimerStore.cancel_every."""
        if not isinstance(name, str):
            raise MessageError(f"name: wanted text, got {type(name).__name__}")
        with self.planner.lock:
            one = self._definitions.find(name)
            if one is None:
                return False
            ended = one._replace(is_ended=True)
            self._definitions.set(ended)
            try:
                self._definitions.save()
                reach("recurring_ended")
                self._end(ended)
            except BaseException:
                self._definitions.set(one)  # it goes on, and may be ended again
                with suppress(TimerStoreError):  # where this is refused, too, a kill ends it
                    self._definitions.save()
                raise
            try:
                self._definitions.save()
            except TimerStoreError as error:
                if not error.retryable:
                    raise
                # It is ended, durably: the next save, or opening, takes it out.
        return True

    def _end(self, one: Definition) -> None:
        self._cancel_until(one, None)
        self._definitions.remove(one.name)

    # --- runs ---

    def _put_runs(self, one: Definition, runs: list[int]) -> None:
        """Put the next runs, those that have passed at once; each is noted as it gets its place."""
        ids = [one.message_id(one.run_count + k + 1).encode() for k in range(len(runs))]
        texts = [one.properties + f"{PROPERTY}\x01{one.name} {run}\x02".encode() for run in runs]
        due = np.array(runs, np.int64)
        now_ms = self._clock.now_ms
        due = np.where(due > now_ms, due, 0)
        rows = Rows(one.body * len(runs), _spans([one.body] * len(runs)), due, b"")
        rows = rows.with_extra(b"".join(texts), _spans(texts)).with_ids(b"".join(ids), _spans(ids))
        route, _ = self._appender.place_of(one.topic, None if one.queue_id < 0 else one.queue_id)
        places = _Noted(self._definitions, one, runs)
        self._appender.append_rows(Destination(route), rows, due, places)
        reach("recurring_run_put")

    def _handle(self, one: Definition) -> Handle:
        """Of the run that was put last: found by its slot, or by the index."""
        config = self._config
        return Handle(
            one.topic,
            config.broker_name,
            out_ms(one.last_run_ms, config.precision_ms) + 1,
            one.message_id(one.run_count),
            None,
        )

    def _waits(self, one: Definition, now_ms: int, due: dict[str, set[str]]) -> bool:
        """Whether that run waits, and is due by now. One that somebody has rescheduled has another
        handle: what waits is read where it is gone from its own time, but was not handed out; once
        for each topic, whose ids `due` keeps.
        """
        found = self._finder.find(self._handle(one))
        states = {self._states.get(each.timer_id) for each in found}
        if lib.TS_WAITING in states or lib.TS_HANDED in states:
            return lib.TS_WAITING in states
        if one.topic not in due:
            found_due = self._pending.read(None, now_ms + 1, one.topic)
            due[one.topic] = {run.message_id for run in found_due}
        return one.message_id(one.run_count) in due[one.topic]

    def _cancel_until(self, one: Definition, until_ms: int | None) -> None:
        """Cancel all runs that wait and are due before a time, the last one last; by reading what
        waits, as one that somebody has rescheduled has another handle. What he reschedules between
        being read and being cancelled waits under a new id: then all is read once more.
        """
        prefix = one.message_id(0)[:-1]
        looked_at: set[int] = set()
        is_moved = True
        while is_moved:
            is_moved = False
            for run in self._pending.read(None, until_ms, one.topic):
                if run.message_id.startswith(prefix) and run.timer_id not in looked_at:
                    looked_at.add(run.timer_id)
                    result = self._cancel(decode(run.handle))
                    is_moved |= result is CancelResult.ALREADY_CANCELLED

    def _cancel(self, handle: Handle) -> CancelResult:
        result, end = self._canceller.cancel(handle)
        if end:
            self._log.sync_through(end)
        self._appender.appended()
        reach("recurring_run_cancelled")
        return result


def _spans(parts: list[bytes]) -> Any:
    spans = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=spans[1:])
    return spans
