"""Reads of a driver: pulls, waiting pulls, filters and queries."""

from tests.support.disk_reader import offset_message_id
from tests.support.driver.changes import ChangeDriver
from tests.support.driver.setup import WAIT_S
from tests.support.inside import inside
from tests.support.inside.parts import pull_bytes_max
from tests.support.models.messages import Put, Queue
from timerstore import (
    Message,
)


class ReadDriver(ChangeDriver):
    """Read messages, and compare them with the model."""

    def wait(self, queue: Queue, tag: str | None) -> None:
        """Leave a pull waiting at the end of a queue, for any message or for those of one tag.

        `look` checks that it is woken in time.
        """
        queue_count = self.store.topics().get(queue[0], 0)
        if queue in self._waiting or queue not in self.model.seen or queue[1] >= queue_count:
            return
        rung: list[int] = []
        offset = len(self.model.seen[queue])
        pull = self.store.begin_pull(*queue, offset, wait=WAIT_S, tags=tag)
        if pull.enter(lambda: rung.append(1)):
            end_ns = self.clock.monotonic_ns + int(WAIT_S * 1e9)
            self._waiting[queue] = (pull, rung, end_ns, tag)

    def _look_at_waiting(self, queue: Queue, new: list[Message]) -> None:
        if queue not in self._waiting:
            return
        pull, rung, end_ns, tag = self._waiting[queue]
        # The pull itself filters more bytes than one read returns; its waker does not.
        is_large = sum(message.store_bytes for message in new) > pull_bytes_max()
        is_large |= self.may_ring_early and bool(new)
        new = [message for message in new if tag is None or message.tags == tag]
        is_over = self.clock.monotonic_ns >= end_ns
        assert rung or not (new or is_over), "the pull was not woken for a message"
        assert new or is_over or not rung or is_large, "the pull was woken without a message"
        if rung:
            del self._waiting[queue]
            pull.leave()
            answer = pull.answer(pull.look())
            assert answer is not None
            found = answer.messages  # not all if they are large
            assert found == tuple(new[: len(found)])
            assert bool(found) == bool(new)

    def settle(self) -> None:
        """Remove all rate limits, run the services until idle, and check that due messages came."""
        self.settle_quietly()
        self.look()
        self.model.check_settled(self.clock.now_ms)

    def settle_quietly(self) -> None:
        """Run the services until idle, without reading, so that no message counts as seen."""
        for topic in inside(self.store).pipeline.dequeue_put.fair_queue.rates:
            self.store.pace(topic, None)
        self.stepper.settle()

    def look(self) -> None:
        """Pull new messages, and compare them with the model."""
        for queue, known in self.model.seen.items():
            new = self._pull_new(queue, len(known))
            self._look_at_waiting(queue, new)
            self.model.came(queue, new)
            self.model.check_order(queue)

    def _pull_new(self, queue: Queue, offset: int) -> list[Message]:
        if self.store.topics().get(queue[0], 0) <= queue[1]:  # the put that made it was killed
            return []
        found: list[Message] = []
        while True:
            if len(found) % 2:
                batch = self.store.pull_batch(*queue, offset, max_count=7)
                messages, following, end = list(batch), batch.next_offset, 0
            else:
                result = self.store.pull(*queue, offset, max_count=5)
                messages, following = list(result.messages), result.next_offset
                end = result.max_offset
            if not messages:
                return found
            assert following == offset + len(messages)
            found += messages
            offset = following
            if offset == end:
                return found

    def look_filtered(self, wanted: list[str], how: dict[str, str]) -> None:
        """Check that a filter returns the messages with a wanted tag, in order."""
        for queue in self.model.seen:
            found, offset = [], 0
            offset = self.begin_of(queue)
            everyone = self._pull_new(queue, offset)
            end = offset + len(everyone)
            while offset < end:
                got = self.store.pull(*queue, offset, max_count=5, **how)  # type: ignore[arg-type]
                assert got.next_offset > offset
                found += got.messages
                offset = got.next_offset
            assert found == [message for message in everyone if message.tags in wanted]

    def look_again(self) -> None:
        """Check that all seen messages are still at the same offsets."""
        for queue in self.model.seen:
            begin = self.begin_of(queue)
            self.model.same(queue, self._pull_new(queue, begin), begin)

    def query(self, topic: str, key: str) -> None:
        """Check that a query by key returns the messages of the model."""
        durable, ends = self._known_before()
        found = self.store.query(topic, key, max_count=1_000_000)
        self.look()  # a query dispatches: there may be more to pull than before
        self.model.check_query(
            topic, lambda put: self._key_of(put.body) == key, found, durable, self.begin_of, ends,
            self.revocable(durable),
        )  # fmt: skip

    def revocable(self, _durable: int) -> set[bytes]:
        """Return messages whose cancel is after `_durable` in the log and may be lost."""
        return set()

    def _known_before(self) -> tuple[int, dict[Queue, int]]:
        """Return the durable end of the log and the ends of the queues before a query."""
        durable = int(self.store.stats()["log_durable_bytes"])
        return durable, {queue: len(known) for queue, known in self.model.seen.items()}

    def query_all(self) -> None:
        """Query every key of every topic."""
        for topic in {queue[0] for queue in self.model.seen}:
            for key in {self._key_of(body) for body in self.model.puts}:
                self.query(topic, key)

    def query_one(self, one: Put) -> None:
        """Query a message by its id, and by the offset of its record."""
        topic, receipt = one.queue[0], one.receipt
        durable, ends = self._known_before()
        found = self.store.query(topic, receipt.message_id)
        self.look()
        name = receipt.message_id  # earlier messages may have the same id
        self.model.check_query(
            topic,
            lambda put: put.receipt.message_id == name,
            found,
            durable,
            self.begin_of,
            ends,
            self.revocable(durable),
        )
        host = self.config.store_host
        found = self.store.query(topic, offset_message_id(host, receipt.log_offset))
        assert [m.body for m in found] in ([], [one.body]) or not one.sure

    def expire(self, queue: Queue) -> None:
        """Fill files and let them expire: seen messages are removed, pending ones are kept."""
        self.put_many(queue, [(0, 3000)] * 7, buffer=True)
        self.settle()
        self.clock.advance(self.config.retention_ms)
        self.put(queue, None, 20)
        self.clock.advance(self.config.retention_ms)
        self.settle()
