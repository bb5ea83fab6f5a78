"""Load a module of `timerstore.net`, which needs the package msgspec, when it is first used.

The package stands above the modules that offer it: `timerstore.connect` and `timerstore.aio`.

Raises: ConfigError if msgspec is not installed.
"""

import importlib
from types import ModuleType

from timerstore.errors import ConfigError


def load_net(name: str) -> ModuleType:
    """Return a module of `timerstore.net`."""
    try:
        return importlib.import_module(f"timerstore.net.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "msgspec":
            raise
        raise ConfigError(
            "a server or a client needs msgspec, which is not installed: "
            "pip install '.[net]' in a checkout"
        ) from error
