"""The calls that settle or change a lease: ack, change of the invisible time, dead letters.

A receipt is a receipt of the store. It is valid after a restart of the server and of the client.

Thread safety: the server's loop only.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from timerstore._engine.leases import AckResult
from timerstore.aio import AsyncTimerStore
from timerstore.errors import TimerStoreError
from timerstore.rocketmq.client_leases import ClientLeases
from timerstore.rocketmq.codes import RejectedError, joint, settled, status, status_of
from timerstore.rocketmq.definitions import Code, messages
from timerstore.rocketmq.known_clients import Client
from timerstore.rocketmq.message_views import milliseconds
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits

_log = logging.getLogger(__name__)


class Settling:
    """The calls of consumers about messages that they have, and leases that end without a call."""

    def __init__(
        self,
        store: AsyncTimerStore,
        held: ClientLeases,
        limits: RocketmqLimits,
        now_ms: Callable[[], int],
        returned: Callable[[int], None],
    ) -> None:
        """`returned`: called with the number of leases that the server ended."""
        self._store = store
        self._held = held
        self._limits = limits
        self.now_ms = now_ms
        self._returned = returned
        self._work: set[asyncio.Task[None]] = set()

    # --- calls ---

    async def ack(self, request: Any) -> Any:
        """Answer AckMessage, with an entry for each receipt."""
        count = len(request.entries)
        if not 1 <= count <= self._limits.entries_max:
            raise RejectedError(
                Code.BAD_REQUEST, f"entries: wanted 1 to {self._limits.entries_max}, got {count}"
            )
        if count == 1:
            entries = [await self._ack(request.entries[0])]
        else:  # the acks of one turn of the loop share a sync
            entries = list(await asyncio.gather(*(self._ack(one) for one in request.entries)))
        return messages.AckMessageResponse(status=joint(entries), entries=entries)

    async def _ack(self, entry: Any) -> Any:
        try:
            found = settled(await self._store.ack(entry.receipt_handle))
            self._held.settled(entry.receipt_handle)
        except TimerStoreError as error:
            found = status_of(error)
            if found is None:
                raise
        return messages.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=found
        )

    async def change(self, request: Any) -> Any:
        """Answer ChangeInvisibleDuration. The new receipt replaces the old one.

        A time of 0 returns the message; then no receipt is valid. It is delivered again at once,
        and to a push consumer after the back-off of its group, which the client for Node leaves to
        the server.
        """
        receipt, lease_ms = request.receipt_handle, milliseconds(request.invisible_duration)
        if lease_ms == 0:
            delay = None if self._held.is_renewed(receipt) else 0
            found, new = settled(await self._store.nack(receipt, delay=delay)), receipt
        else:
            new = await self._store.extend(receipt, lease=lease_ms / 1000)
            found = status()
        self._held.settled(receipt)
        return messages.ChangeInvisibleDurationResponse(status=found, receipt_handle=new)

    async def forward(self, request: Any) -> Any:
        """Answer ForwardMessageToDeadLetterQueue."""
        text = f"forwarded by its consumer at attempt {request.delivery_attempt}"
        return messages.ForwardMessageToDeadLetterQueueResponse(
            status=settled(await self.bury(request.receipt_handle, text))
        )

    async def bury(self, receipt: str, error: str) -> AckResult:
        """Make a message a dead letter."""
        found = await self._store.bury(receipt, error=error)
        self._held.settled(receipt)
        return found

    # --- leases that end without a call of their client ---

    def give_back(self, receipts: Sequence[str]) -> None:
        """Give back messages that no client has seen: the next one gets them at once."""
        for one in receipts:
            self._held.settled(one)
        if receipts:
            self._begin(self._give_back(receipts))

    async def _give_back(self, receipts: Sequence[str]) -> None:
        self._returned(await self._store._give_back(receipts))

    def end_leases(self, client_id: str, has_left: Callable[[Client], bool]) -> None:
        """End the leases of a push consumer that has left: its messages are delivered again."""
        if receipts := self._held.ended(client_id, has_left):
            self._begin(self._nack(receipts))

    async def _nack(self, receipts: Sequence[str]) -> None:
        results = await asyncio.gather(*(self._store.nack(one, delay=0) for one in receipts))
        self._returned(results.count(AckResult.NACKED))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # They end at their own time.
            _log.warning("leases could not be given back: %s", error)

    async def finish(self) -> None:
        """Wait until all leases that have to end have ended."""
        while self._work:
            await asyncio.wait(self._work)
