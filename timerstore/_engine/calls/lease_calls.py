"""Receive and settle messages of an open store, and read and requeue dead letters."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

from timerstore._engine.calls.open_store import OpenStore, counted
from timerstore._engine.leases import (
    AckResult,
    DeadLetter,
    LeaseCall,
    LeasedMessage,
    Leases,
    WaitingReceive,
    WaitingTopics,
)
from timerstore._engine.leases.dead_letter_reader import check_names
from timerstore._engine.leases.lease_call import Settled
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore._engine.leases.requeuer import Requeuer
from timerstore._engine.leases.shared_receive import BegunReceive
from timerstore._engine.read.groups import check_name
from timerstore.reports import GroupBacklog

Answer = TypeVar("Answer")


class LeaseCalls(OpenStore):
    """The calls of a store that lease messages."""

    _leases: Leases
    _requeuer: Requeuer

    @counted
    def _do_receive(self, request: ReceiveRequest) -> list[LeasedMessage]:
        return self._leases.receive(request)

    def _do_begin_receive(self, request: ReceiveRequest) -> WaitingReceive | WaitingTopics:
        self._check_open()
        return self._leases.begin(request, self._call)

    @counted
    def _receive_each(self, requests: Sequence[ReceiveRequest]) -> list[BegunReceive | Exception]:
        """Make `receive` calls of tasks with one sync (timerstore.aio)."""
        return self._failing_if_final(self._leases.receive_each(requests, self._call))

    def _claim(self, messages: Sequence[LeasedMessage]) -> list[LeasedMessage]:
        """Return the messages of `_receive_each` that the caller may return (timerstore.aio)."""
        return self._leases.claim(messages)

    @counted
    def _give_back_unclaimed(self, messages: Sequence[LeasedMessage]) -> None:
        """Give back messages of callers that were cancelled (timerstore.aio)."""
        self._leases.give_back_unclaimed(messages)

    def _calls_ended(self) -> None:
        self._leases.give_back_unclaimed()

    @counted
    def _give_back(self, receipts: Sequence[str]) -> int:
        """Give back messages that no consumer saw (timerstore.net)."""
        return self._leases.give_back(receipts)

    @counted
    def _do_ack(self, receipt: str | LeasedMessage) -> AckResult:
        return self._leases.ack_one(receipt)

    @counted
    def _do_ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        return self._leases.ack(receipts)

    @counted
    def _do_nack(
        self, receipt: str | LeasedMessage, delay: timedelta | float | None, error: str | None
    ) -> AckResult:
        return self._leases.nack(receipt, delay, error)

    @counted
    def _do_extend(self, receipt: str | LeasedMessage, lease: timedelta | float) -> str:
        return self._leases.extend(receipt, lease)

    @counted
    def _do_renew(self, receipt: str | LeasedMessage, lease: timedelta | float) -> int:
        return self._leases.renew(receipt, lease)

    @counted
    def _settle_each(self, calls: Sequence[LeaseCall]) -> list[Settled | Exception]:
        """Make calls of tasks that settle or extend leases, with one sync (timerstore.aio)."""
        return self._failing_if_final(self._leases.settle_each(calls))

    def _failing_if_final(self, answers: list[Answer]) -> list[Answer]:
        """Fail the store if an answer is an error that is final. Return the answers."""
        for one in answers:
            if isinstance(one, Exception):
                self._fail_if_final(one)
        return answers

    @counted
    def _do_bury(self, receipt: str | LeasedMessage, error: str | None) -> AckResult:
        return self._leases.bury(receipt, error)

    def _do_dead_letters(self, group: str, topic: str | None) -> Iterator[DeadLetter]:
        self._check_open()
        letters = self._requeuer.letters(*check_names(group, topic))
        return self._steps_of(letters)

    @counted
    def _do_backlog(self, topic: str, group: str) -> GroupBacklog:
        topic, group = check_name("topic", topic), check_name("group", group)
        return self._engine.group_backlogs.one(topic, group, self._requeuer.count)

    @counted
    def _do_requeue(
        self,
        group: str,
        letters: Iterable[str | DeadLetter] | str | DeadLetter | None,
        topic: str | None,
    ) -> int:
        return self._requeuer.requeue(group, letters, topic)
