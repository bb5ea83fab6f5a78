"""Kills of a driver inside puts, ingests, cancels and reschedules."""

from tests.support.driver.ends import EndDriver
from tests.support.models.messages import Put, Queue


class KillDriver(EndDriver):
    """Kill the store inside a call that writes."""

    def kill_in_put(self, point: str, nth: int, queue: Queue, due_ms: int | None) -> None:
        """Kill the store inside a put: it is stored or not."""
        body = self.new_body(300)
        with self.dying(point, nth) as reached, self._limited([due_ms or 0]):
            receipt = self._put(queue, body, due_ms, None)
            self.note_put(queue, body, due_ms, receipt, sure=not reached)

    def kill_in_put_level(self, point: str, queue: Queue, level: int) -> None:
        """Kill the store inside a put with a fixed level."""
        body = self.new_body(300)
        with self.dying(point, 1) as reached:
            self._put_level(queue, level, body, sure=False)
            self.model.puts[body].sure = not reached

    def kill_in_put_many_level(
        self, point: str, nth: int, queue: Queue, level: int, count: int
    ) -> None:
        """Kill the store inside a put_many with a fixed level: a prefix of it is stored."""
        bodies = [self.new_body(700) for _ in range(count)]
        with self.dying(point, nth) as reached:
            self._put_many_level(queue, level, bodies, sure=False)
            for body in [] if reached else bodies:
                self.model.puts[body].sure = True

    def kill_in_put_many(
        self, point: str, nth: int, queue: Queue, items: list[tuple[int, int]]
    ) -> None:
        """Kill the store inside a put_many: a prefix of it is stored."""
        bodies = [self.new_body(size) for _, size in items]
        dues = [due_ms for due_ms, _ in items]
        with self.dying(point, nth) as reached, self._limited(dues):
            self._put_many(queue, items, bodies, buffer=False, sure=False)
            for body in [] if reached else bodies:
                self.model.puts[body].sure = True

    def kill_in_put_group(
        self, point: str, nth: int, queue: Queue, items: list[tuple[int, int]]
    ) -> None:
        """Kill the store inside an atomic put_many: it is stored completely or not at all."""
        bodies = [self.new_body(size) for _, size in items]
        dues = [due_ms for due_ms, _ in items]
        with self.dying(point, nth, is_opened=False) as reached, self._limited(dues):
            self._put_many(queue, items, bodies, buffer=False, sure=False, atomic=True)
        self._open()
        known = [body for body in bodies if body in self.model.puts]  # empty if it was rejected
        if reached and known:
            ids = {self.model.puts[body].receipt.message_id for body in known}
            waiting = {one.message_id for one in self.store.pending()} & ids
            self.stepper.step("dispatch")
            there = {m.message_id for m in self._pull_new(queue, len(self.model.seen[queue]))}
            count = len(waiting) + len(there & ids)
            assert count in (0, len(known)), f"{count} of a group of {len(known)}"
            for body in known:
                self.model.puts[body].sure = bool(count)
                if not count:
                    del self.model.puts[body]
        for body in [] if reached else known:
            self.model.puts[body].sure = True
        self.after_opening()

    def kill_in_put_once(
        self, point: str, nth: int, queue: Queue, which: int, due_ms: int | None
    ) -> None:
        """Kill the store inside a put with a message id of the caller."""
        with self.dying(point, nth) as reached:
            self._put_once(queue, which, due_ms, self.new_body(300), lambda: bool(reached))

    def kill_in_ingest(
        self,
        point: str,
        nth: int,
        source: str,
        number: int,
        items: list[tuple[int, int]],
        cut: int,
    ) -> None:
        """Kill the store inside an ingest."""
        version = self._version(source, number, items)
        with self.dying(point, nth) as reached:
            self.store.ingest(source, number, version.batches(cut))
            if not reached:
                version.is_sure = True

    def kill_in_cancel(self, point: str, nth: int, one: Put) -> None:
        """Kill the store inside a cancel: it is cancelled or not."""
        with self.dying(point, nth) as reached:
            answer = self.store.cancel(one.receipt)
            self.note_cancel(one, answer, sure=not reached)

    def kill_in_reschedule(self, point: str, nth: int, one: Put, due_ms: int) -> None:
        """Kill the store inside a reschedule: the message has its old or its new due time."""
        with self.dying(point, nth) as reached:
            receipt = self._reschedule(one, due_ms, "handle")
            if receipt is not None and reached:
                one.maybe_moved = (receipt, receipt.due_ms)
            elif receipt is not None:
                self.model.moved(one, receipt, receipt.due_ms)
