"""A store in another process, with the calls of TimerStore: `timerstore.connect`.

Thread safety: any thread. All share one connection (channel.py).
Invariants:
    1. A call whose connection is lost is sent again only if it then happens once (repeating.py).
    2. A forked child makes its own connection.
Raises: as TimerStore; UnavailableError and ConnectionLostError. ClosedError after `close`.
See also: docs/guide.md, docs/protocol.md.
"""

import os
import time
import weakref
from collections.abc import Iterator
from typing import Any

from timerstore._engine.base.owner import close_at_exit
from timerstore._engine.leases import DeadLetter, LeaseConsumer, LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest, Topics
from timerstore._engine.read.pull_request import PullRequest
from timerstore.errors import (
    ConnectionLostError,
    TimerStoreError,
    UnavailableError,
)
from timerstore.net.attempt_limits import RetryLimit
from timerstore.net.call_table import LIST_CALLS, STORE_CALLS, pack_call
from timerstore.net.channel import Channel
from timerstore.net.channel_parts import NotSentError, without_ack
from timerstore.net.client_options import checked_options
from timerstore.net.connector import Connector
from timerstore.net.not_remote import missing_name
from timerstore.net.recorded_calls import RecordedCalls
from timerstore.net.remote_consumer import RemoteConsumer, wait_seconds
from timerstore.net.remote_wait import RemoteWait
from timerstore.net.repeating import CallAttempt, ClientIds
from timerstore.types.reports import PendingTimer


class RemoteStore(RecordedCalls):
    """A connected store; `timerstore.connect` returns it. Close it, or use `with`.

    It has the calls of TimerStore, except those that `timerstore.net.not_remote` lists.
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._ids = ClientIds()
        self._pid = os.getpid()
        close_at_exit(self)

    @property
    def url(self) -> str:
        """The address of the server."""
        return str(self._connector.endpoint)

    def _perform(self, name: str, args: list[Any], options: dict[str, Any]) -> Any:
        found, _ = self._made(name, args, options)
        return found

    def _made(self, name: str, args: list[Any], options: dict[str, Any]) -> tuple[Any, Channel]:
        """Make a call; return its result and the connection that it was made on."""
        if os.getpid() != self._pid:
            self._ids.renew()
            self._pid = os.getpid()
        connector, spec = self._connector, STORE_CALLS[name]
        limit = self._limit(options.get("wait") if spec.waits else 0)
        attempt = CallAttempt(spec, args, options, None if limit.is_none else self._ids)
        while True:
            try:
                channel = connector.channel(limit.deadline_s)
            except UnavailableError as error:
                raise attempt.given_up(error) from error
            options = attempt.options_for(channel.welcome.dedupe_window_ms)
            try:
                options, acked = without_ack(channel.welcome, options)
                if acked:
                    channel.request(STORE_CALLS["ack_many"], [acked], {})
                found = channel.request(spec, args, options, is_late=attempt.is_late)
                return attempt.result(found), channel
            except (NotSentError, TimerStoreError) as error:
                if (pause_s := attempt.pause_s(error, limit)) is None:
                    raise
            time.sleep(pause_s)

    def _do_begin_receive(self, request: ReceiveRequest) -> RemoteWait:
        return self._begun("receive", request)

    def _do_begin_pull(self, request: PullRequest) -> Any:
        return self._begun("pull", request)

    def _begun(self, name: str, request: object) -> RemoteWait:
        """Begin a call whose answer the caller takes. It is not sent again by itself."""
        args, options = pack_call(name, (request,))
        limit = self._limit()
        while True:
            channel = self._connector.channel(limit.deadline_s)
            try:
                sent, acked = without_ack(channel.welcome, options)
                if acked:
                    channel.request(STORE_CALLS["ack_many"], [acked], {})
                return RemoteWait(channel, STORE_CALLS[name], args, sent)
            except NotSentError as error:
                pause_s = limit.pause_s(error)
            time.sleep(pause_s)

    def _limit(self, wait: object = 0) -> RetryLimit:
        connector = self._connector
        return RetryLimit(
            connector.times.retry_for_s,
            connector.longest_pause_s,
            connector.endpoint,
            wait_seconds(wait),
        )

    def _do_pending(self, *values: Any) -> Iterator[PendingTimer]:
        return self._listed("pending", values)

    def _do_dead_letters(self, *values: Any) -> Iterator[DeadLetter]:
        return self._listed("dead_letters", values)

    def _listed(self, name: str, values: tuple[Any, ...]) -> Iterator[Any]:
        number, channel = self._made(name, *pack_call(name, values))
        rows = _rows(name, channel, number)
        weakref.finalize(rows, channel.close_later, number).atexit = False
        return rows

    def _do_consumer(self, *values: Any) -> RemoteConsumer:
        args, options = pack_call("consumer", values)

        def join() -> tuple[int, Channel]:
            return self._made("consumer", args, options)

        return RemoteConsumer(join, self._limit, args[0], args[1], options.get("wait"))

    def _do_lease_consumer(
        self, topic: Topics, group: str, wait: float | None, options: dict[str, Any]
    ) -> LeaseConsumer[LeasedMessage]:
        return LeaseConsumer(self.receive, self.ack, self.nack, topic, group, wait, options)

    def close(self) -> None:
        """End the connection. Running calls raise ClosedError; the server's store stays open."""
        self._connector.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing_name(type(self).__name__, name), name=name, obj=self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def _rows(of: str, channel: Channel, number: int) -> Iterator[Any]:
    """Yield the messages of a list that the server keeps for this connection."""
    while page := _next_page(of, channel, number):
        yield from page


def _next_page(of: str, channel: Channel, number: int) -> Any:
    try:
        return channel.request(LIST_CALLS[of]["next"], [], {}, number)
    except NotSentError as error:
        raise ConnectionLostError(
            f"the connection was lost during `{of}`; call it again"
        ) from error


def connect_store(url: str, **options: Any) -> RemoteStore:
    """Implement timerstore.connect."""
    connector = Connector(*checked_options(url, **options))
    connector.connect()
    return RemoteStore(connector)
