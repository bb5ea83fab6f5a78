"""The store of a broker URL, opened once in a process for all of its connections of kombu.

A connection of kombu that Celery closes and makes again, after an error, finds the same store with
the same leases. A forked child opens its own.

Thread safety: any thread.
Locking: `_lock` while a store is opened or closed.
"""

import os
import threading
from collections.abc import Mapping
from typing import Any

from timerstore.contrib.celery.address import Address, address_of, open_store
from timerstore.contrib.celery.bindings import Bindings
from timerstore.contrib.celery.held_leases import HeldLeases

_lock = threading.Lock()
_open: "dict[tuple[Address, str], Broker]" = {}


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold it
    _lock = threading.Lock()
    for one in _open.values():
        one.leases.forget_in_child()
    _open.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class Broker:
    """An open store and what its users in this process share."""

    def __init__(
        self, address: Address, options: Mapping[str, Any], tls: Mapping[str, Any] | None
    ) -> None:
        self._arguments = (address, options, tls)
        self._process_id = os.getpid()
        self.store = open_store(address, options, tls)
        self.bindings = Bindings(self.store)
        self.leases = HeldLeases(self.store, self._close_if_unused)
        self._user_count = 0
        self._is_open = True

    @classmethod
    def of(cls, client: Any) -> "Broker":
        """Return the broker of a kombu connection; `release` it later."""
        tls = client.ssl if isinstance(client.ssl, Mapping) else None
        return cls._of(address_of(client), client.transport_options, tls)

    @classmethod
    def _of(
        cls, address: Address, options: Mapping[str, Any], tls: Mapping[str, Any] | None
    ) -> "Broker":
        key = address, repr((options.get("token_file"), tls))
        with _lock:
            if (found := _open.get(key)) is None:
                found = _open[key] = cls(address, options, tls)
            found._user_count += 1
            return found

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a child of the one that opened the store."""
        return os.getpid() != self._process_id

    def reopened(self) -> "Broker":
        """Return the broker of the same URL, for one more user: this one, if it is open."""
        with _lock:
            if self._is_open:
                self._user_count += 1
                return self
        return self._of(*self._arguments)

    def release(self) -> None:
        """End the use of the broker. The last user closes the store. If settlements of a lost
        connection are still to be repeated, that is done after them.
        """
        with _lock:
            self._user_count -= 1
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        with _lock:
            is_used = self._user_count or self.leases.has_late or self.is_inherited
            if is_used or not self._is_open:
                return
            self._is_open = False
            for key in [key for key, one in _open.items() if one is self]:
                del _open[key]
        try:
            self.store.close()
        finally:
            self.leases.close()
