"""A store that several processes open: the first one owns it and serves it to the others.

`timerstore.open(path, shared=True)`. The socket is in the store's directory. When the owner has
closed the store or died, the lock of the store decides which of the others opens it next. Every
process, the owner as well, makes its calls over the socket, so a change of the owner is a lost
connection like any other.

Thread safety: any thread. One of them connects or opens; the others wait for it.
Invariants:
    1. Two processes never serve one store: only the holder of the store's lock listens.
    2. A process without running calls takes over, too: a thread watches the connection.
    3. A forked child connects by itself, and owns nothing.
    4. All processes have the same settings, so a change of the owner changes none.
Raises: as timerstore.open and RemoteStore.
See also: docs/decisions/0018-server-and-client.md.
"""

import logging
import select
import threading
import time
import weakref
from pathlib import Path

from timerstore import store as single
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.storage.geometry import is_left_to_files
from timerstore.errors import (
    ClosedError,
    ConfigError,
    LockedError,
    ReentrantCallError,
    TimerStoreError,
    UnavailableError,
    quoted,
)
from timerstore.net.access import socket_rules
from timerstore.net.attempt_limits import ClientTimes
from timerstore.net.channel import Channel
from timerstore.net.connector import Connector
from timerstore.net.endpoints import Endpoint
from timerstore.net.remote_store import RemoteStore
from timerstore.net.server_limits import ServerLimits
from timerstore.net.start_server import unix_listener
from timerstore.net.store_server import StoreServer
from timerstore.net.wire_messages import CONFIG_FEATURE, PROTOCOL_VERSION, Hello, Welcome
from timerstore.store import TimerStore
from timerstore.types.config import StoreConfig

SOCKET_NAME = "server.sock"
_WORKERS = 8
_SILENT_S = 10.0  # for the first answer of an owner, which may have much to do
_BUSY_S = 0.01
_LOOK_S = 0.2  # how often the watcher looks whether it is still needed
_LONGEST_PAUSE_S = 5.0  # of the watcher, while no process can open the store
_TIMES = ClientTimes(retry_for_s=30.0, connect_timeout_s=30.0, call_timeout_s=5.0)

_log = logging.getLogger(__name__)


class SharedConnector(Connector):
    """Connects to the owner of a store, or becomes the owner."""

    longest_pause_s = 0.1  # an owner that died is replaced within a second

    def __init__(
        self, path: Path, config: StoreConfig | None, *, return_leases: bool = False
    ) -> None:
        self._socket_path = Tree(path).side / SOCKET_NAME
        hello = Hello(PROTOCOL_VERSION, [CONFIG_FEATURE], None, return_leases)
        super().__init__(Endpoint(self._socket_path), hello, None, _TIMES)
        self._path = path
        self._config = config
        self._owned: tuple[TimerStore, StoreServer] | None = None
        self._watcher: threading.Thread | None = None
        self.closing = threading.Event()
        """Set by `close`."""

    @property
    def is_owner(self) -> bool:
        """Whether this process has the store open."""
        return self._owned is not None

    def _attempt(self, _timeout_s: float) -> Channel:
        channel = self._connected_or_opened()
        self._watch()
        return channel

    def _joined(self) -> Channel:
        """Connect to the owner, whose settings must be those of this process. If it is stopped,
        waiting does not help: it keeps the lock.
        """
        try:
            channel = super()._attempt(_SILENT_S)
        except TimeoutError as error:
            raise UnavailableError(
                f"the owner of the store does not answer ({error})",
                where=self._path,
                retryable=False,
            ) from error
        if problems := _unequal_settings(self._config or StoreConfig(), channel.welcome):
            channel.close()
            raise ConfigError(problems, where=self._path)
        return channel

    def _connected_or_opened(self) -> Channel:
        try:
            return self._joined()
        except (
            FileNotFoundError,
            NotADirectoryError,  # the path is a file: the opening says so
            ConnectionRefusedError,
            ConnectionResetError,
        ) as error:
            self._give_up_ended()
            try:
                self._open()
            except LockedError as locked:  # another process opens it, or closes it
                raise UnavailableError(str(locked)) from error
            return self._joined()

    def _open(self) -> None:
        store = single.open(self._path, self._config)
        try:
            listener = unix_listener(self._socket_path, socket_rules(), is_guarded=True)
            server = StoreServer(store, [listener], ServerLimits(), _WORKERS)
            server.start()
            self._owned = store, server
        except BaseException:
            store.close()
            raise

    def _give_up_ended(self) -> None:
        """Close the store if its server has ended, so that a process can open it again."""
        if self._owned is not None and not self._owned[1].has_ended:
            return  # the next attempt finds it, or its end
        try:
            self._give_up()
        except ReentrantCallError:  # the lock is not released
            raise
        except TimerStoreError as error:  # it is released, and the next opening recovers the store
            _log.warning("shared store: its last owner could not close it: %s", error)

    def _give_up(self) -> None:
        """Close the store, if this process owns it. It releases the lock also with an error."""
        if self._owned is None:
            return
        store, server = self._owned
        try:
            try:
                server.close()
            finally:
                store.close()
        finally:
            if store._is_released():
                self._owned = None

    # --- taking over ---

    def _watch(self) -> None:
        if self._watcher is None or not self._watcher.is_alive():
            self._watcher = threading.Thread(
                target=_watch_connection,
                args=(weakref.ref(self),),
                name="timerstore-shared",
                daemon=True,
            )
            self._watcher.start()

    def reconnect_if_lost(self) -> None:
        """Wait a moment for the end of the connection. If it ended, connect again or take over."""
        channel = self._channel
        if channel is not None and not channel.is_lost:
            poll = select.poll()
            poll.register(channel.fileno(), select.POLLRDHUP)
            if not poll.poll(_LOOK_S * 1000):
                return
            if not channel.lose_if_idle():  # a thread reads the last answers, and then the end
                time.sleep(_BUSY_S)
                return
        if not self._is_closed:
            self.channel()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """End the connection. The owner closes the store, and another process takes over."""
        super().close()
        self.closing.set()
        self._lock.run(self._close_made)
        watcher = self._watcher
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join()

    def _close_made(self) -> None:
        super().close()  # a connection that was made in between
        self._give_up()

    def forget_in_child(self) -> None:
        """Drop the connection and the parent's store in a forked child."""
        super().forget_in_child()
        self._owned = None
        self._watcher = None


def _unequal_settings(config: StoreConfig, welcome: Welcome) -> list[str]:
    """Return a text for each setting that would change if this process became the owner."""
    return [
        f"{name}: wanted {quoted(wanted)}, as in this process, got {quoted(got)} in the "
        "process that has the store open"
        for name, got in welcome.config.items()
        if (wanted := getattr(config, name, got)) != got and not is_left_to_files(config, name)
    ]


def _watch_connection(connector: "weakref.ref[SharedConnector]") -> None:
    pause_s = 0.0
    while (one := connector()) is not None and not one.is_closed:
        try:
            one.reconnect_if_lost()
        except ClosedError:
            return
        except (TimerStoreError, OSError, ValueError) as error:
            if not pause_s:
                _log.warning("shared store: no server, and this process cannot be it: %s", error)
            pause_s = min(max(2 * pause_s, _LOOK_S), _LONGEST_PAUSE_S)
            one.closing.wait(pause_s)  # the next call of the program raises the error
        else:
            pause_s = 0.0
        del one


class SharedStore(RemoteStore):
    """A store that is shared by processes; `timerstore.open(path, shared=True)` returns it."""

    def __init__(self, connector: SharedConnector) -> None:
        super().__init__(connector)
        self._shared = connector

    @property
    def is_owner(self) -> bool:
        """Whether this process has the store open at present."""
        return self._shared.is_owner


def open_shared(
    path: Path, config: StoreConfig | None, *, return_leases: bool = False
) -> SharedStore:
    """Implement timerstore.open with `shared=True`."""
    connector = SharedConnector(path, config, return_leases=return_leases)
    connector.connect()
    return SharedStore(connector)
