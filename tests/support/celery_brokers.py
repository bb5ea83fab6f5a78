"""Close what Celery and kombu keep open until their process ends: in a run, other tests follow."""

import importlib
import sys


def close_brokers() -> None:
    """Close the stores of all connections of kombu in this process."""
    if "timerstore.contrib.celery.broker" not in sys.modules:
        return
    importlib.import_module("kombu.pools").reset()  # kombu loads it late
    for left in list(sys.modules["timerstore.contrib.celery.broker"]._open.values()):
        left.leases._late.clear()
        left._user_count = 0
        left._close_if_unused()
