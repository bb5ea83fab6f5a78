"""The dashboard: a web page that shows a store, explains one message and can cancel it.

    timerstore serve orders.store --ui            # opens the store, or reads a snapshot of it
    with dashboard.start(store) as served:        # in the program that has it open
        print(served.url)

source.py            the interface of a data source for the page
open_source.py       a store that this process has open
snapshot_source.py   the files of a store that another process has open
rates.py             rates and lateness of the last minute; message_rows.py: messages as rows
events.py            the page's numbers, sent repeatedly as server-sent events
request_guard.py     token, host and origin checks; headers of every response
app.py               pages and calls; server.py: socket, thread, start and stop
page/                the page itself; nothing is built, nothing is loaded from elsewhere

Invariants:
    1. A request without the token gets an empty 401 response.
    2. Only `cancel` changes the store, and a read-only dashboard rejects it.
Raises: ConfigError if starlette or uvicorn is missing: `pip install '.[serve]' in a checkout`.
See also: docs/decisions/0014-tools.md.
"""

from timerstore.errors import ConfigError

try:
    import starlette  # noqa: F401 - checked here, once
    import uvicorn  # noqa: F401
except ImportError as error:
    raise ConfigError(
        f"serve: {error.name} is not installed; pip install '.[serve]' in a checkout"
    ) from error

from timerstore.dashboard.server import Served, run, start

__all__ = ["Served", "run", "start"]
