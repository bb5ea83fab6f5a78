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

from collections.abc import Callable

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import Lock
from timerstore._engine.base.service import IDLE_S_MAX, Service
from timerstore._engine.base.signal import Signals
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.recurring.definitions import Definitions
from timerstore._engine.recurring.rule import Rule, rule_of
from timerstore.clock import Clock

_RUNS_MAX = 100
"""Runs of one definition that one step puts, at most."""
_NEVER = 2**62


class Planner(Service):
    """Plans the runs of one store."""

    name = "recurring"

    def __init__(
        self,
        metrics: Metrics,
        signals: Signals,
        clock: Clock,
        log: CommitLog,
        definitions: Definitions,
        delay_ms_max: int,
        put_runs: Callable[[Definition, list[int]], None],
    ) -> None:
        """`put_runs` puts the next runs of a definition, given their times, and records them."""
        super().__init__(metrics, signals)
        self._clock = clock
        self._log = log
        self._definitions = definitions
        self._delay_ms_max = delay_ms_max
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
        return min(max((self._wake_ms - self._clock.now_ms) / 1000, 0.0), IDLE_S_MAX)

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
