"""recurring: of each definition one run waits on the wheel; when its time has come, the next one.

    planned 02:30 (waits)   02:30 comes: handed out by the wheel   planned tomorrow 02:30 (waits)

A run whose time passed before it was planned was missed: the store was not open, the machine slept,
the clock was set forward, or the step is shorter than a pause of this process.

Threads:  recurring; `lock` for who defines and ends.
Holds:    runs of a definition are put in the order of their times, each once.
Fails:    FullError, FlowControlError are tried again.
Source:   docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import Lock
from timerstore._engine.base.service import IDLE_S_MAX, Service
from timerstore._engine.base.signals import Signals
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.recurring.definitions import Definitions
from timerstore._engine.recurring.rule import Rule, rule_of
from timerstore.clock import Clock

_RUNS_MAX = 100  # of one definition in one step
_NEVER = 2**62


class Planner(Service):
    """Puts the runs of one store."""

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
        super().__init__(metrics, signals)
        self._clock = clock
        self._log = log
        self._definitions = definitions
        self._delay_ms_max = delay_ms_max
        self._put_runs = put_runs
        self.lock = Lock()
        self._wake_ms: int | None = None
        self._following: dict[str, tuple[Definition, int | None]] = {}  # the run behind, by name

    def step(self) -> bool:
        """Plan what is due to be."""
        self._log.check_alive()
        with self.lock:
            now_ms = self._clock.now_ms
            wakes, worked = [], False
            for one in self._definitions.all():
                if not one.is_ended:
                    wake_ms = self._wake_of(one)
                    if wake_ms <= now_ms:
                        self._plan(one, now_ms)
                        worked = True
                    else:
                        wakes.append(wake_ms)
            self._wake_ms = min(wakes, default=None)
            return worked

    def plan(self, name: str) -> None:
        """Plan what is due to be of one: the others' runs are the service's, where it runs."""
        self._log.check_alive()
        with self.lock:
            now_ms = self._clock.now_ms
            one = self._definitions.find(name)
            if one is not None and not one.is_ended and self._wake_of(one) <= now_ms:
                self._plan(one, now_ms)

    def idle_s(self) -> float | None:
        """Until the next run is to be planned."""
        if self._wake_ms is None:
            return None
        return min(max((self._wake_ms - self._clock.now_ms) / 1000, 0.0), IDLE_S_MAX)

    def _wake_of(self, one: Definition) -> int:
        """When its next run is to be planned: when the one before is due, but not before a timer
        may reach so far.
        """
        if one.planned_ms >= _NEVER:
            return _NEVER
        known = self._following.get(one.name)
        if known is None or known[0] != one:
            known = self._following[one.name] = one, rule_of(one).after(one.planned_ms)
        following = known[1]
        if following is None:
            return _NEVER
        begin_ms = one.planned_ms if one.run_count else 0
        return max(begin_ms, following - self._delay_ms_max)

    def _plan(self, one: Definition, now_ms: int) -> None:
        rule = rule_of(one)
        runs = runs_of(rule, one.missed, one.planned_ms, now_ms)
        latest_ms = now_ms + self._delay_ms_max
        reachable = [run for run in runs if run <= latest_ms]
        if reachable:
            self._put_runs(one, reachable)
        elif runs:  # all that was missed is left out: what comes is planned when it is near
            self.leave_out(one, now_ms)
        else:
            self._definitions.set(one._replace(planned_ms=_NEVER, run_ms=one.last_run_ms))

    def leave_out(self, one: Definition, now_ms: int) -> None:
        """Runs up to now are done with."""
        last_ms = rule_of(one).last_until(now_ms, one.planned_ms)
        if last_ms is not None:
            self._definitions.set(one._replace(planned_ms=last_ms, run_ms=one.last_run_ms))


def runs_of(rule: Rule, missed: str, planned_ms: int, now_ms: int) -> list[int]:
    """Give the runs to put behind those that were: what of the missed ones comes, then the next."""
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
