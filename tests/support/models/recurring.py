"""A model of recurring messages: each run occurs once, and missed runs follow the policy.

The runs of a job are at its start and at fixed intervals after it. One run is pending; at its time
the next one is planned.

    skip   a run comes only if it was planned before its time, or was pending while no process had
           the store open
    one    of missed runs only the last one comes, late, or the one that was pending
    all    each run comes, late or not, and the numbers have no gap

Invariants, checked by assertions:
    1. A run keeps its number and its time; later numbers have later times.
    2. A job that was ended has no further runs and nothing pending.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.support.inside import inside
from tests.support.turned_clock import TurnedClock
from timerstore import Message, Recurring, TimerStore
from timerstore.errors import FullError

TOPIC = "ticks"
QUEUE = (TOPIC, 0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = 2**62
_CRON = {60_000: "* * * * *", 3_600_000: "0 * * * *"}
_JUMP_RUNS = 200  # runs of a catch-up job in one change of the clock

Runs = dict[int, int]
"""The time of each run, by number."""


@dataclass
class _Job:
    name: str
    body: bytes
    every_ms: int
    begin_ms: int  # time of its first run
    start_ms: int | None  # as the caller gave it
    missed: str
    made_ms: int
    mark: int  # the clock's mark when it was made
    is_cron: bool = False  # given as a cron text: each minute or each hour
    token: str = ""
    is_live: bool | None = None  # None: unknown
    ended_at: int = _NEVER  # the log's end when it was ended
    planned: Runs = field(default_factory=dict)  # runs that were pending at the last look
    came: Runs = field(default_factory=dict)

    def after(self, ms: int) -> int:
        """Return the first run after a time."""
        passed = max(-1, (ms - self.begin_ms) // self.every_ms)
        return self.begin_ms + (passed + 1) * self.every_ms

    def until(self, ms: int) -> int:
        """Return the last run at a time, or before."""
        return self.after(ms) - self.every_ms

    def message_id(self, number: int) -> str:
        return f"every/{self.name}/{self.token}/{number}"


class Ticks:
    """The recurring jobs of a store."""

    def __init__(self) -> None:
        self.seen = 0  # messages read from the queue
        self._jobs: list[_Job] = []

    @property
    def has_doubts(self) -> bool:
        """Return whether a call has no result and the store was not reopened since."""
        return any(one.is_live is None for one in self._jobs)

    @property
    def turn_ms_max(self) -> int:
        """Return how far the clock may advance at once without too many runs."""
        every = [j.every_ms for j in self._jobs if j.missed == "all" and j.is_live is not False]
        return _JUMP_RUNS * min(every, default=_NEVER)

    @property
    def live(self) -> list[str]:
        """Return the names of live jobs."""
        return [one.name for one in self._jobs if one.is_live]

    def _find(self, name: str) -> _Job | None:
        """Return the job of this name that exists or may exist."""
        return next((j for j in self._jobs if j.name == name and j.is_live is not False), None)

    # --- calls ---

    def put_every(
        self, store: TimerStore, clock: TurnedClock, name: str, body: bytes, every_ms: int,
        begin_ms: int | None, missed: str, is_dead: Callable[[], bool], *, is_cron: bool = False,
    ) -> None:  # fmt: skip
        """Add a job; the same job added again changes nothing."""
        now_ms = clock.now_ms
        job = self._find(name)
        if job is not None and job.is_live is None:
            return
        is_again = job is not None
        if job is None:
            begin = now_ms + every_ms if begin_ms is None else begin_ms
            if begin < now_ms:  # with a past start, the first run is the next one
                begin = now_ms + (begin - now_ms) % every_ms
            if is_cron:
                begin = now_ms - now_ms % every_ms + every_ms
            job = _Job(
                name, body, every_ms, begin, begin_ms, missed, now_ms, clock.mark(),
                is_cron,
            )  # fmt: skip
            self._jobs.append(job)
        try:
            shown = self._put(store, job)
        except FullError:
            if inside(store).log.failed is None and not is_again:
                there = [one.name for one in store.recurring()]
                assert name not in there, "said to be full, and made it"
                self._jobs.remove(job)
            raise
        every = 0 if job.is_cron else job.every_ms
        assert (shown.name, shown.made_ms, shown.every_ms or 0) == (name, job.made_ms, every)
        if not is_again:
            self._is_there(store, job)
            job.is_live = None if is_dead() else True

    def _put(self, store: TimerStore, job: _Job) -> Recurring:
        if job.is_cron:
            return store.put_every(
                TOPIC, job.body, cron=_CRON[job.every_ms], missed=job.missed, name=job.name,
                queue_id=0,
            )  # fmt: skip
        ms = job.start_ms
        start = None if ms is None else _EPOCH + timedelta(milliseconds=ms)
        return store.put_every(
            TOPIC, job.body, every=timedelta(milliseconds=job.every_ms), start=start,
            missed=job.missed, name=job.name, queue_id=0,
        )  # fmt: skip

    def _is_there(self, store: TimerStore, job: _Job) -> None:
        found = inside(store).definitions.find(job.name)
        assert found is not None
        job.token, job.is_live = found.token, True

    def cancel_every(self, store: TimerStore, name: str, is_dead: Callable[[], bool]) -> None:
        """End a job."""
        job = self._find(name)
        was_live = job is not None and job.is_live
        if job is not None:
            job.is_live = None  # in case an error is raised
        answer = store.cancel_every(name)
        assert answer is was_live or (job is not None and not was_live)
        if job is not None and not is_dead():
            self._is_over(store, job)
            assert not self._waiting(store).get(job.token), f"ended, and waits: {job}"

    def _is_over(self, store: TimerStore, job: _Job) -> None:
        job.is_live, job.ended_at = False, inside(store).log.end
        job.planned.clear()

    # --- looking ---

    def _waiting(self, store: TimerStore) -> dict[str, Runs]:
        """Return the pending runs, by token."""
        found: dict[str, Runs] = {}
        for one in store.pending(topic=TOPIC):
            _, name, token, number = one.message_id.split("/")
            runs = found.setdefault(token, {})
            assert int(number) not in runs, f"a run waits twice: {one}"
            job = next((j for j in self._jobs if (j.name, j.token) == (name, token)), None)
            if job is None and (job := self._find(name)) is not None and not job.token:
                job.token = token  # of a call without result
            assert job is not None, f"of nothing that recurs: {one}"
            assert job.is_live is not False, f"ended, and waits: {one}"
            assert int(number) not in job.came, f"came, and waits: {one}"
            runs[int(number)] = one.due_ms
        return found

    def check_waiting(self, store: TimerStore) -> None:
        """Check that each pending run belongs to a job and was not delivered."""
        self._waiting(store)

    def look(self, store: TimerStore, clock: TurnedClock) -> None:
        """Read the delivered runs, and check them."""
        if not store.topics().get(TOPIC):
            return
        while messages := store.pull(*QUEUE, self.seen, max_count=100).messages:
            for message in messages:
                assert message.queue_offset == self.seen, f"a gap before {message}"
                self.seen += 1
                self._came(clock, message)

    def _came(self, clock: TurnedClock, message: Message) -> None:
        job = next((j for j in self._jobs if j.body == message.body), None)
        assert job is not None, f"nobody asked for {message}"
        number, run_ms = _number_of(message), int(message.properties["TS_EVERY"].split(" ")[1])
        job.token = job.token or message.message_id.split("/")[2]
        assert message.message_id == job.message_id(number)
        assert number not in job.came, f"run {number} twice: {job}"
        assert job.until(run_ms) == run_ms >= job.begin_ms, f"no time of it: {run_ms} {job}"
        assert clock.highest_since(job.mark) >= run_ms, f"early: {message}"
        assert message.delivered_ms >= run_ms, f"early: {message}"
        assert message.log_offset < job.ended_at, f"came after it was ended: {message}"
        if message.due_ms != run_ms:
            assert job.missed != "skip", f"it was missed, and is skipped: {message}"
            is_last = job.until(message.store_ms) == run_ms
            assert job.missed == "all" or is_last, f"not the last that was missed: {message}"
        job.came[number] = run_ms
        self._check_times(job, {})

    def _check_times(self, job: _Job, waiting: Runs) -> None:
        runs = sorted({**job.came, **waiting}.items())
        times = [run_ms for _, run_ms in runs]
        assert times == sorted(set(times)), f"later numbers, earlier times: {job}"

    def opened(
        self, store: TimerStore, clock: TurnedClock, shown_ms: int, *, may_have_lost: bool
    ) -> None:
        """Decide the missed runs after the store was opened and before any service has stepped.

        `shown_ms` is the latest time of the clock before the opening. A run that was due by then
        may still be delivered, as any timer.
        """
        there = {(one.name, one.made_ms) for one in store.recurring()}
        for job in self._jobs:
            if job.is_live is None and (job.name, job.made_ms) in there:
                self._is_there(store, job)
            elif job.is_live is None:
                self._is_over(store, job)
        assert {(j.name, j.made_ms) for j in self._jobs if j.is_live} == there
        waiting = self._waiting(store)
        for job in self._jobs:
            runs = waiting.get(job.token, {}) if job.is_live else {}
            late = [run_ms for run_ms in runs.values() if shown_ms < run_ms <= clock.now_ms]
            most = {"skip": 0, "one": 1}.get(job.missed, len(late))
            assert len(late) <= most, f"missed, and waits: {late} {job}"
            for number, run_ms in job.planned.items():
                is_skipped = job.missed == "skip" and run_ms <= clock.now_ms
                is_there = number in runs or number in job.came
                assert may_have_lost or is_there or is_skipped, f"run {number} is gone: {job}"
            job.planned = runs

    def settled(self, store: TimerStore, clock: TurnedClock) -> None:
        """Check, when services are idle, that each job's next run is pending and others came."""
        waiting = self._waiting(store)
        for job in self._jobs:
            if not job.is_live:
                continue
            runs = waiting.get(job.token, {})
            for old in job.planned:
                assert old in job.came or old in runs, f"run {old} did not come: {job}"
            job.planned = runs
            self._check_times(job, runs)
            if job.missed == "all":
                both = {**job.came, **runs}
                wanted = range(job.begin_ms, max(both.values(), default=0) + 1, job.every_ms)
                assert both == dict(enumerate(wanted, 1)), f"{runs} waits: {job}"
            latest_ms = clock.highest_since(job.mark)
            if clock.now_ms < latest_ms and (not runs or min(runs.values()) <= latest_ms):
                continue  # clock set back: the next run is planned at the time of the last one
            assert len(runs) == 1, f"{runs} of {job} wait"
            [run_ms] = runs.values()
            earliest, latest = job.after(clock.now_ms), job.after(latest_ms)
            assert earliest <= run_ms <= latest, f"{run_ms} is next at {clock.now_ms}: {job}"


def _number_of(message: Message) -> int:
    return int(message.message_id.rpartition("/")[2])
