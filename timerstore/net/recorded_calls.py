"""The calls of `StoreApi` as values: name, arguments, options.

Signatures and checks of names are those of `StoreApi`; its implementation hooks are made from the
table of calls. A client gives them to its connection.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from timerstore._engine.introspection.explain import name_of
from timerstore._engine.leases import LeasedMessage
from timerstore._engine.recurring import Recurring
from timerstore.api import SingleStoreApi
from timerstore.net.call_table import STORE_CALLS, pack_call
from timerstore.net.not_remote import not_remote
from timerstore.types.messages import Message
from timerstore.types.receipts import PutBatch, PutReceipt
from timerstore.types.reports import PendingTimer


class RecordedCalls(
    SingleStoreApi[PutReceipt, PutBatch, Message, LeasedMessage, Recurring, Any, Any]
):
    """Passes each call on as a value."""

    def _perform(self, name: str, args: list[Any], options: dict[str, Any]) -> Any:
        """Make a call, or return what makes it."""
        raise NotImplementedError

    def _do_explain(
        self, message: PutReceipt | Message | PendingTimer | str, topic: str | None
    ) -> Any:
        if isinstance(message, PutReceipt | Message | PendingTimer):
            topic, message = name_of(message, None)
        args, options = pack_call("explain", (message, topic))
        return self._perform("explain", args, options)

    def _do_begin_pull(self, _request: Any) -> Any:
        raise not_remote("begin_pull")

    def _do_begin_pull_batch(self, _request: object) -> NoReturn:
        raise not_remote("begin_pull_batch")

    def _do_begin_receive(self, _request: Any) -> Any:
        raise not_remote("begin_receive")


def _hook(name: str) -> Callable[..., Any]:
    def call(self: RecordedCalls, *values: Any) -> Any:
        args, options = pack_call(name, values)
        return self._perform(name, args, options)

    return call


for _name in STORE_CALLS:
    if f"_do_{_name}" not in vars(RecordedCalls):
        setattr(RecordedCalls, f"_do_{_name}", _hook(_name))
