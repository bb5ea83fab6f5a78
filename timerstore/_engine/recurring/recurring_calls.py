"""The calls for recurring messages: put_every, recurring, cancel_every.

    define   save the definition, then put its first run. After a crash in between, the opening
             continues.
    end      save that the definition ends, cancel its pending runs, then remove the definition.
    open     complete every end. Then cancel the pending runs that came due while the store was
             closed and that the policy `missed` does not keep, before the wheel turns.

Thread safety: any thread.
Locking: the planner's lock, then those of Definitions and of the log.
Raises: MessageError for invalid arguments. FullError: nothing was defined or ended, but runs that
were late may be cancelled; if the process is killed then, opening may complete the end. A first run
for which there is no space is put later.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

from contextlib import suppress

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.message_fields import PriorityQueueId, stored_queue_id
from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.handle import Handle, decode
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.routes import Route
from timerstore._engine.recurring import (
    Definitions,
    Planner,
    Recurring,
    RecurringRequest,
    define,
    describe,
)
from timerstore._engine.recurring.planner import PROPERTY
from timerstore._engine.timer.handle_lookup import HandleLookup
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.write.append import Appender, OwnMessage
from timerstore._engine.write.cancel import Canceller
from timerstore.errors import MessageError, TimerStoreError, kind_of
from timerstore.types.receipts import out_ms
from timerstore.types.reports import CancelResult


class RecurringCalls(NotCopyable):
    """The recurring messages of one store."""

    def __init__(
        self,
        core: Core,
        finder: HandleLookup,
        pending: PendingReader,
        canceller: Canceller,
        definitions: Definitions,
        appender: Appender,
        *,
        threads: bool,
    ) -> None:
        self._threads = threads
        self._is_started = False
        self._clock = core.clock
        self._appender = appender
        self._log = core.log
        self._definitions = definitions
        self.planner = Planner(core, definitions, self._put_runs)
        self._states = core.states
        self._config = core.config
        self._finder = finder
        self._pending = pending
        self._canceller = canceller

    # --- the service ---

    def start(self) -> None:
        """Start the service's thread if the store runs threads and has definitions.

        It is not started in a store that delivers nothing: runs would accumulate there, and all
        come at once later.
        """
        runs = self._threads and not self._config.stop_dequeue
        with self.planner.lock:
            if runs and not self._is_started and self._definitions.all():
                self.planner.start()
                self._is_started = True

    # --- opening ---

    def prepare(self) -> None:
        """Complete interrupted ends, and decide on runs that came due while the store was closed.

        Call it before the wheel turns. In a store whose wheel does not turn, the next opening
        decides.
        """
        now_ms, turns = self._clock.now_ms, not self._config.stop_dequeue
        due: dict[str, set[str]] = {}
        with self.planner.lock:
            for one in self._definitions.all():
                if one.is_ended:
                    self._end(one)
                elif turns and one.run_count and one.planned_ms <= now_ms and one.missed != "all":
                    self._drop_missed(one, now_ms, due)
            self._definitions.save()

    def _drop_missed(self, definition: Definition, now_ms: int, due: dict[str, set[str]]) -> None:
        if definition.missed == "skip":
            self._cancel_until(definition, now_ms + 1)
        elif self._is_last_run_due(definition, now_ms, due):  # it is the one that is delivered
            self.planner.leave_out(definition, now_ms)

    # --- the calls ---

    def put_every(self, request: RecurringRequest) -> Recurring:
        """As TimerStore.put_every."""
        now_ms = self._clock.now_ms
        made = define(self._config, now_ms, request)
        if isinstance(request.queue_id, PriorityQueueId):
            self._route_of(made)  # raises if the topic cannot have priorities
        with self.planner.lock:
            known = self._definitions.find(made.name)
            if known is not None and not known.is_ended:
                if known.request != made.request:
                    raise MessageError(
                        f"name: {made.name!r} recurs already, as something else; cancel_every it "
                        "first, or take another name"
                    )
                return describe(known, now_ms)
            self._definitions.check_size(made)
            if known is not None:
                self._end(known)
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
            # The definition is durable: the service puts the run once there is space.
        self.start()
        self.planner.wake()
        found = self._definitions.find(made.name)
        return describe(found if found is not None else made, now_ms)

    def describe_all(self) -> list[Recurring]:
        """As TimerStore.recurring."""
        now_ms = self._clock.now_ms
        found = [describe(one, now_ms) for one in self._definitions.all() if not one.is_ended]
        return sorted(found, key=lambda one: one.name)

    def cancel_every(self, name: object) -> bool:
        """As TimerStore.cancel_every."""
        if not isinstance(name, str):
            raise MessageError(f"name: wanted text, got {kind_of(name)}")
        with self.planner.lock:
            definition = self._definitions.find(name)
            if definition is None:
                return False
            ended = definition._replace(is_ended=True)
            self._definitions.set(ended)
            try:
                self._definitions.save()
                reach("recurring_ended")
                self._end(ended)
            except BaseException:
                self._definitions.set(definition)  # it goes on, and may be ended again
                with suppress(TimerStoreError):  # if this fails too, the next opening ends it
                    self._definitions.save()
                raise
            try:
                self._definitions.save()
            except TimerStoreError as error:
                if not error.retryable:
                    raise
                # The end is durable: the next save, or the next opening, removes the definition.
        return True

    def _end(self, definition: Definition) -> None:
        self._cancel_until(definition, None)
        self._definitions.remove(definition.name)

    # --- runs ---

    def _put_runs(self, definition: Definition, runs: list[int]) -> None:
        """Put runs with these times and record each. Runs whose times have passed are due now."""
        name, body, before = definition.name, definition.body, definition.run_count
        route, now_ms = self._route_of(definition), self._clock.now_ms
        for count, run in enumerate(runs, before + 1):
            text = definition.properties + f"{PROPERTY}\x01{name} {run}\x02".encode()
            own = OwnMessage(definition.message_id(count).encode(), body, text)

            def record(*_: int, count: int = count, run: int = run) -> None:
                self._definitions.record_runs(name, count, run)

            self._appender.append_own(route, own, run if run > now_ms else 0, record, now_ms)
            reach("recurring_run_put")

    def _route_of(self, definition: Definition) -> Route:
        """Return the queue of the next runs; create it if necessary."""
        queue_id = None
        if definition.queue_id >= 0:
            queue_id = stored_queue_id(definition.queue_id, definition.properties)
        return self._appender.place_of(definition.topic, queue_id)[1]

    def _last_run_handle(self, definition: Definition) -> Handle:
        """Return the handle of the run that was put last, unless it was rescheduled."""
        config = self._config
        return Handle(
            definition.topic,
            config.broker_name,
            out_ms(definition.last_run_ms, config.precision_ms) + 1,
            definition.message_id(definition.run_count),
            None,
        )

    def _is_last_run_due(
        self, definition: Definition, now_ms: int, due: dict[str, set[str]]
    ) -> bool:
        """Return whether the run that was put last is still pending, and due by now.

        A rescheduled run has another handle. If the run is neither pending nor delivered at its own
        time, all due messages of the topic are read instead. `due` caches their ids by topic.
        """
        found = self._finder.find(self._last_run_handle(definition))
        states = {self._states.get(each.timer_id) for each in found}
        if lib.TS_PENDING in states or lib.TS_DELIVERED in states:
            return lib.TS_PENDING in states
        topic = definition.topic
        if topic not in due:
            found_due = self._pending.read(None, now_ms + 1, topic)
            due[topic] = {run.message_id for run in found_due}
        return definition.message_id(definition.run_count) in due[topic]

    def _cancel_until(self, definition: Definition, until_ms: int | None) -> None:
        """Cancel all pending runs that are due before a time, the last one last; None: all.

        The pending messages are read, because a rescheduled run has another handle. A run that is
        rescheduled between the read and its cancel is pending under a new id. Then all are read
        once more.
        """
        prefix = definition.message_id(0)[:-1]
        looked_at: set[int] = set()
        is_moved = True
        while is_moved:
            is_moved = False
            for run in self._pending.read(None, until_ms, definition.topic):
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
