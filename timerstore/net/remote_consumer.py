"""A group's consumer in the server, for a client with threads.

The consumer in the server ends with its connection. This one then joins the group again, from the
offsets that the group has committed: as after any end of a consumer, messages that were not
committed are returned again.

Thread safety: any thread; each message goes to one thread.
Raises: as Consumer; ConnectionLostError from `seek`, whose effect ended with the connection.
"""

import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Self

from timerstore._engine.base.owner import Closing
from timerstore._engine.read.consumer import offset_after
from timerstore.errors import ClosedError, ConnectionLostError, MessageError, TimerStoreError
from timerstore.net.attempt_limits import RetryLimit
from timerstore.net.call_table import CONSUMER_CALLS
from timerstore.net.channel import Channel
from timerstore.net.channel_parts import NotSentError
from timerstore.net.packed_arguments import packed_options
from timerstore.net.surviving_lock import SurvivingLock
from timerstore.types.messages import Message

LONGEST_WAIT_S = 3600.0
"""The longest single wait of a loop without a limit."""


class RemoteConsumer(Closing):
    """A reader of a topic for a group; `RemoteStore.consumer` returns it. Close it, or use `with`.

    Iterating is as for Consumer.
    """

    def __init__(
        self,
        join: Callable[[], tuple[int, Channel]],
        limit: Callable[[object], RetryLimit],
        topic: str,
        group: str,
        wait: float | None,
    ) -> None:
        """`join`: makes the consumer in the server; returns its number and its connection.
        `limit`: makes the limit of the attempts of one call, which waits for some seconds.
        """
        self.topic = topic
        self.group = group
        self.wait = wait
        """How many seconds iterating waits for the next message; None: without a limit."""
        self._join = join
        self._limit = limit
        self._interrupted: tuple[int, Channel] | None = None
        self._lock = SurvivingLock()
        self._pid = os.getpid()
        self._is_closed = False
        self._present = join()
        self._has_rejoined = False  # since the last poll: nothing of this consumer can be committed

    # --- reading ---

    def poll(self, max_count: int = 32, wait: float = 0.0) -> list[Message]:
        """Return the next messages of any of its queues, at most `max_count`.

        Wait up to `wait` seconds for the first one; return an empty list if none arrives.

        Raises:
            MessageError: an argument is invalid.
            ClosedError: the consumer or the store is closed.
        """
        deadline, left = time.monotonic() + wait_seconds(wait), wait
        limit = self._limit(wait)
        while True:
            packed = packed_options("poll", {"max_count": max_count, "wait": left})
            number, channel = self._joined()
            try:
                found: list[Message] = channel.request(CONSUMER_CALLS["poll"], [], packed, number)
                self._has_rejoined = False
                return found
            except (ConnectionLostError, NotSentError) as error:
                if not channel.is_lost:  # no answer came in time: messages may be on their way
                    self._interrupted = number, channel
                time.sleep(lost_pause_s(limit, error))
                left = max(deadline - time.monotonic(), 0.0)
            except (ClosedError, MessageError):
                self._check_open()
                if self._present[0] == number:
                    raise
                # another thread was interrupted in `poll`, and this consumer has joined again
            except TimerStoreError:
                raise
            except BaseException:  # messages may be on their way, which the server does not repeat
                self._interrupted = number, channel
                raise

    def __iter__(self) -> Self:
        self._check_open()
        return self

    def __next__(self) -> Message:
        wait = LONGEST_WAIT_S if self.wait is None else self.wait
        try:
            while not (found := self.poll(1, wait)):
                if self.wait is not None:
                    raise StopIteration
        except ClosedError:
            raise StopIteration from None
        return found[0]

    # --- committing and seeking ---

    def commit(self, through: Message | Mapping[int, int] | None = None) -> dict[int, int]:
        """Commit the messages handed out here, as Consumer.commit.

        If the connection was lost since they were handed out, or a `poll` was interrupted and
        `through` is not given, return an empty dict: whether they
        are committed is unknown, and those that are not are handed out again.
        """
        options = commit_options(self.topic, through)
        number, channel = self._joined(is_commit=bool(options))
        if self._has_rejoined:
            return {}
        try:
            done: dict[int, int] = channel.request(CONSUMER_CALLS["commit"], [], options, number)
        except (ConnectionLostError, NotSentError):
            return {}
        return done

    def seek(
        self,
        offset: int | None = None,
        *,
        time: datetime | None = None,
        time_ms: int | None = None,
        queue_id: int | None = None,
    ) -> dict[int, int]:
        """Continue at another offset, as Consumer.seek.

        Raises:
            ConnectionLostError: the connection was lost; the position is that of the group.
        """
        given = {"offset": offset, "time": time, "time_ms": time_ms, "queue_id": queue_id}
        options = packed_options("seek", {k: one for k, one in given.items() if one is not None})
        number, channel = self._joined()
        at: dict[int, int] = self._ask(channel, "seek", options, number)
        return at

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that it reads at present."""
        number, channel = self._joined()
        return tuple(self._ask(channel, "queues", {}, number))

    @staticmethod
    def _ask(channel: Channel, name: str, options: Mapping[str, Any], number: int) -> Any:
        try:
            return channel.request(CONSUMER_CALLS[name], [], options, number)
        except NotSentError as error:
            raise ConnectionLostError(f"the connection was lost before `{name}`") from error

    # --- the consumer in the server ---

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(
                "the consumer is closed", where=f"topic {self.topic} group {self.group}"
            )

    def _joined(self, *, is_commit: bool = False) -> tuple[int, Channel]:
        """Return the consumer in the server; join again if it has ended, or if a poll was
        interrupted. `is_commit`: keep it, to commit named offsets.
        """
        self._check_open()
        if os.getpid() != self._pid:
            self._lock = SurvivingLock()
            self._pid = os.getpid()
        found: list[tuple[int, Channel]] = []

        def join_if_ended() -> None:
            present = self._present
            channel = present[1]
            is_lost = channel.is_lost or channel.fileno() < 0
            is_interrupted = self._interrupted == present and not is_commit
            if is_lost or is_interrupted:
                if not is_lost:
                    self._leave()
                self._has_rejoined = True
                self._present = self._join()
                if self._is_closed:  # since then; in the server it would keep its queues
                    self._leave()
                    self._check_open()
            found.append(self._present)

        self._lock.run(join_if_ended)
        return found[0]

    def close(self) -> None:
        """Leave the group without a commit; the other consumers get its queues."""
        if self._is_closed or self._present[1].is_lost or os.getpid() != self._pid:
            self._is_closed = True
            return
        self._is_closed = True
        self._leave()

    def _leave(self) -> None:
        number, channel = self._present
        try:
            channel.request(CONSUMER_CALLS["close"], [], {}, number)
        except (NotSentError, TimerStoreError):
            return  # it has ended with its connection

    def __repr__(self) -> str:
        return f"<RemoteConsumer topic={self.topic!r} group={self.group!r}>"


def lost_pause_s(limit: RetryLimit, error: Exception) -> float:
    """Return the seconds before the next attempt of a call, as RetryLimit.pause_s.

    Raises:
        ConnectionLostError: calls are not repeated.
    """
    if limit.is_none:
        raise ConnectionLostError("the connection was lost during `poll`") from error
    return limit.pause_s(error)


def wait_seconds(wait: object) -> float:
    """Return a time to wait; 0 for a value of another type, which the server rejects."""
    return float(wait) if isinstance(wait, int | float) else 0.0


def commit_options(topic: str, through: Message | Mapping[int, int] | None) -> dict[str, Any]:
    """Return the options of a `commit`: a message stands for the offset of the next one."""
    if isinstance(through, Message):
        return {"through": dict([offset_after(topic, through)])}
    return {} if through is None else packed_options("commit", {"through": through})
