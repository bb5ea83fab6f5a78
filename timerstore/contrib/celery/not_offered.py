"""What the transport does not have, with reasons. The guide page has the same table."""

from collections.abc import Mapping
from types import MappingProxyType

NOT_OFFERED: Mapping[str, str] = MappingProxyType(
    {
        "transactions of AMQP": "a put is durable when it returns, so there is nothing to commit",
        "headers exchanges": "Celery does not use them; a topic exchange does the same by its keys",
        "per-queue TTL": "give tasks `expires`: a worker marks an expired task as revoked, and the "
        "store drops it an hour after that",
        "mirrored queues": "one process owns a store; replicate its disk",
        "gevent and eventlet": "the client uses locks of threads, which they replace",
        "requeue of a broadcast message": "it has no lease: each consumer reads it once",
        "the result backend rpc://": "it makes a queue for each client, which is a topic of the "
        "store; use another one",
    }
)
"""By name: the reason."""
