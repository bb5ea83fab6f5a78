"""A topic that is filled and deleted in one operation, whatever happens in between.

The model does not know its messages. After each opening the topic is whole, or it is gone if its
deletion had begun. Then it is deleted again, so that nothing of it is in the way of other checks.
"""

from random import Random
from typing import Any

from tests.sim.world import World

SCRAP = "scrap"
_GROUP = "scrappers"


class Scrapping(World):
    """A world with a topic that is deleted."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._scrap_count = 0  # messages that are surely stored
        self._may_be_deleted = True

    def op_scrap(self, number: int) -> None:
        """Put messages, due at once and later, lease some, and delete the topic."""
        draw = Random(number)
        self.may_scan_all = True  # if it dies before the checkpoint that follows the deletion
        self._may_be_deleted = False
        for at in range(draw.choice((1, 2, 12))):
            delay = draw.choice((None, 0.5, 30, 400 * 86_400))
            body = b"scrap %d" % at
            expires_ms = draw.choice((None, self.clock.now_ms + 5)) if delay is None else None
            self.store.put(
                SCRAP, body, delay=delay, flush="sync", queue_id=at % 2, keys="scrap",
                expires_ms=expires_ms,
            )  # fmt: skip
            self._scrap_count += not self.is_dead
        self.clock.advance(draw.choice((0, 4, 5)))
        if draw.random() < 0.5:
            self._receive(2, draw.choice((1, 30)), draw.choice((None, 1)))
        self._may_be_deleted |= not self.is_dead
        self._delete_scrap()

    def _receive(self, count: int, lease_s: float, max_attempts: int | None = None) -> None:
        found = self.store.receive(
            SCRAP, _GROUP, max_count=count, lease=lease_s, max_attempts=max_attempts
        )
        now_ms = self.clock.now_ms
        assert all(one.expires_ms is None or one.expires_ms > now_ms for one in found), found

    def _delete_scrap(self) -> None:
        for is_there in (True, False):
            found = self.store.delete_topic(SCRAP)
            assert self.is_dead or found == is_there
        if not self.is_dead:
            self._scrap_count = 0
            self._check_no_scrap()

    def _check_no_scrap(self) -> None:
        left = [one for one in self.store.topics() if one.endswith(SCRAP)]
        assert not left, f"not deleted: {left}"
        assert not [one for one in self.store.pending() if one.topic.endswith(SCRAP)]
        assert not self.config.index_enabled or not self.store.query(SCRAP, "scrap")
        assert not self.store.committed(SCRAP, _GROUP)
        assert not [one for one in self.store.dead_letters(_GROUP) if one.topic == SCRAP]

    def after_opening(self) -> None:
        """Check that the topic is whole or gone."""
        super().after_opening()
        if self.is_dead or (not self._scrap_count and SCRAP not in self.store.topics()):
            return
        if SCRAP not in self.store.topics():
            assert self._may_be_deleted, "gone before the deletion began"
            self._scrap_count = 0
            self._check_no_scrap()
            self.count("scrap gone")
            return
        there = sum(one.topic == SCRAP for one in self.store.pending())
        for queue_id in range(self.store.topics()[SCRAP]):
            there += len(self.store.pull(SCRAP, queue_id, 0, max_count=100).messages)
        assert there >= self._scrap_count, f"{there} of {self._scrap_count} are there"
        self.count("scrap whole")
        self._receive(100, 30)
        self._delete_scrap()
