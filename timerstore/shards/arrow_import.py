"""pyarrow, which is an extra: who stages rows or reads what is staged needs it, nobody else.

Fails:    ConfigError that says what to install.
"""

import importlib
from functools import cache
from typing import Any

from timerstore.errors import ConfigError


@cache
def pyarrow() -> Any:
    """Give the module."""
    return _load("pyarrow")


@cache
def compute() -> Any:
    """Give its functions over columns."""
    return _load("pyarrow.compute")


@cache
def ipc() -> Any:
    """Give its file format."""
    return _load("pyarrow.ipc")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            "staged rows need pyarrow, which is not installed: pip install 'timerstore[arrow]'"
        ) from error
