"""Merge the reports of the children of one directory into the history of its messages."""

from dataclasses import dataclass, field

from tests.crash.report import ANSWERS, QUEUES, Kind, Line, ingest_rows, unpack
from timerstore import CancelResult


@dataclass(slots=True)
class Reading:
    """The position of the group in one queue, by the reports of the children."""

    committed: int = 0
    begun: int = 0  # the last commit that may have been stored
    next: int | None = None  # the next message to be handed out; None after an opening

    def handed(self, at: int) -> bool:
        """Record a message that was handed out, and return whether it was expected."""
        fits = self.sought(at) if self.next is None else at == self.next
        self.next = at + 1
        return fits

    def sought(self, at: int) -> bool:
        """Return whether the last commit may have this offset, which counts as the commit from now
        on.
        """
        fits = self.committed <= at <= self.begun
        self.commit(at)
        return fits

    def commit(self, end: int) -> None:
        """Record that a commit returned."""
        self.committed = self.begun = end


@dataclass(slots=True)
class History:
    """The merged reports of the children of one directory."""

    begun: dict[int, int] = field(default_factory=dict)  # id -> queue
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # first id, count, atomic
    # id, queue, due: puts with a message id
    asked: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    acked: dict[int, Line] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    cancel_begun: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)  # ids with a reschedule that was begun
    # reschedules in flight: the new time, 0 for now
    moving: dict[int, int] = field(default_factory=dict)
    answers: dict[int, list[CancelResult]] = field(default_factory=dict)
    pulled: dict[int, list[Line]] = field(default_factory=dict)  # queue -> in order of offsets
    readings: list[Reading] = field(default_factory=lambda: [Reading() for _ in QUEUES])
    ingesting: dict[int, bool] = field(default_factory=dict)  # version -> whether the call returned
    problems: list[str] = field(default_factory=list)
    notes: list[Line] = field(default_factory=list)

    def read(self, raw: bytes) -> None:
        """Add the reports of one child."""
        for line in unpack(raw):
            self._take(line)

    def _take(self, line: Line) -> None:  # noqa: C901, PLR0912 - one case for each kind of record
        match line.kind:
            case Kind.PUT_BEGUN:
                self.begun[line.id] = line.queue
                if line.b:
                    self.asked[line.id] = line.id, line.queue, line.due
            case Kind.PUT_MANY_BEGUN:
                self.batches.append((line.id, line.a, line.b))
                self.begun.update(dict.fromkeys(range(line.id, line.id + line.a), line.queue))
            case Kind.PUT:
                self.acked[line.id] = line
            case Kind.CANCEL_BEGUN:
                self.cancel_begun.add(line.id)
            case Kind.MOVE_BEGUN:
                self.moving[line.id] = line.due
                self.moved.add(line.id)
            case Kind.MOVED:
                self.acked[line.id] = line
                del self.moving[line.id]
            case Kind.CANCELLED:
                self.moving.pop(line.id, None)
                self.answers.setdefault(line.id, []).append(ANSWERS[line.answer])
            case Kind.PULLED:
                seen = self.pulled.setdefault(line.queue, [])
                if line.a != len(seen):
                    self.problems.append(f"pulled offset {line.a} after {len(seen)}: {line}")
                seen.append(line)
            case Kind.INGEST_BEGUN:
                self.ingesting.setdefault(line.id, False)
                self.begun.update((number, 0) for number, _ in ingest_rows(line.id))
            case Kind.INGESTED:
                if self.ingesting[line.id] and not line.a:
                    self.problems.append(f"ingested twice: version {line.id}")
                self.ingesting[line.id] = True
            case Kind.REFUSED if line.a == Kind.PUT_BEGUN:
                self.refused.add(line.id)
            case Kind.REFUSED if line.a == Kind.CANCEL_BEGUN:
                self.cancel_begun.discard(line.id)
            case Kind.NOTE:
                self.notes.append(line)
            case Kind.OPENED:
                for reading in self.readings:
                    reading.next = None
            case Kind.HANDED:
                reading = self.readings[line.queue]
                known = str(reading)
                if not reading.handed(line.a):
                    self.problems.append(f"handed out {line}, but {known}")
            case Kind.COMMIT_BEGUN:
                self.readings[line.queue].begun = line.a
            case Kind.COMMITTED:
                self.readings[line.queue].commit(line.a)
            case Kind.SOUGHT:
                reading = self.readings[line.queue]
                known = str(reading)
                if not reading.sought(line.a):
                    self.problems.append(f"went back to {line}, but {known}")
                reading.next = line.a
            case Kind.QUERIED:
                self.problems.append(f"a query by id found it {line.a} times: {line}")
            case Kind.EARLY:
                self.problems.append(f"seen before its time: {line}")
            case Kind.REWOUND:
                self.problems.append(f"a queue went back: {line}")

    @property
    def cancelled(self) -> set[int]:
        """Return the ids that are surely cancelled."""
        sure = (CancelResult.CANCELLED, CancelResult.ALREADY_CANCELLED)
        return {i for i, answers in self.answers.items() if any(a in sure for a in answers)}
