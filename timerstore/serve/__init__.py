"""A store in a browser: the wheel turning, what waits, lateness, one message explained, cancel.

    timerstore serve orders.store --ui            # opens it, or looks beside who has it open
    with serve.start(store) as served:            # in the program that has it open
        print(served.url)

source.py   what every page shows; open_store.py, beside.py   of a store that is open here, and of
            files beside their owner; rates.py, messages.py   what they are made of
events.py   the page's numbers, again and again, as server-sent events
guard.py    who may ask: token, host, origin; what every answer's head says
app.py      the pages and calls            server.py  socket, thread, start and stop
page/       the page, as it is: nothing is built, nothing comes from outside

Holds:    (1) without the token no byte is told and nothing is done; (2) the page changes nothing
          but by `cancel`, which names the message once more, and not at all where it is read only.
Fails:    ConfigError without starlette and uvicorn: `pip install 'timerstore[serve]'`.
Source:   decision 0045.
"""

from timerstore.errors import ConfigError

try:
    import starlette  # noqa: F401 - told here, once, where it is missing
    import uvicorn  # noqa: F401
except ImportError as error:
    raise ConfigError(
        f"serve: {error.name} is not installed; pip install 'timerstore[serve]'"
    ) from error

from timerstore.serve.server import Served, run, start

__all__ = ["Served", "run", "start"]
