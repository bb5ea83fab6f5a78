"""Celery and kombu on a store: `import timerstore.contrib.celery` registers the broker URLs.

    timerstore:///run/orders.sock              a server on this machine
    timerstore+shared:///var/lib/orders.store  a shared store, without a server
    timerstore+tls://HOST:PORT                 a server on another machine

address.py        broker URLs, and the store that one names
broker.py         the store of a URL, shared by all connections of a process
held_leases.py    leases that are renewed while tasks run, and settled
prefetch.py       the messages that a channel's consumers have (kombu's QoS)
bindings.py       exchanges and queues, as messages of a topic
broadcasts.py     queues that read the topic of an exchange from its end
wire.py           tasks as messages of a store, and names as topics
consuming.py      the waits of a channel, for the event loop
store_channel.py, transport.py    the interface of kombu
control.py        `revoke` and `inspect scheduled` on the store
scheduler.py      `celery beat -S timerstore.contrib.celery:Scheduler`
not_offered.py    what the transport does not have, with reasons

kombu has no entry point for transports, hence the import.
"""

from typing import TYPE_CHECKING, Any

from timerstore.errors import ConfigError

try:
    from kombu.transport import TRANSPORT_ALIASES

    from timerstore.contrib.celery.transport import Transport
except ImportError as error:
    raise ConfigError(
        f"celery: wanted celery and kombu ({error}); pip install '.[celery]' in a checkout"
    ) from error

if TYPE_CHECKING:
    from timerstore.contrib.celery.control import Control
    from timerstore.contrib.celery.scheduler import Scheduler

__all__ = ["Control", "Scheduler", "Transport"]

for _scheme in ("timerstore", "timerstore+shared", "timerstore+tls"):
    TRANSPORT_ALIASES[_scheme] = "timerstore.contrib.celery.transport:Transport"


def __getattr__(name: str) -> Any:
    """Import the names that need Celery's application: a producer of kombu does without them."""
    if name == "Control":
        from timerstore.contrib.celery.control import Control  # noqa: PLC0415

        return Control
    if name == "Scheduler":
        from timerstore.contrib.celery.scheduler import Scheduler  # noqa: PLC0415

        return Scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
