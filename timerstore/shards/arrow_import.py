"""Import pyarrow, which only staging and reading of staged rows need.

Raises: ConfigError, with the package to install.
"""

import importlib
from functools import cache
from typing import Any

from timerstore.errors import ConfigError


@cache
def pyarrow() -> Any:
    """Return the module pyarrow."""
    return _load("pyarrow")


@cache
def compute() -> Any:
    """Return the module pyarrow.compute."""
    return _load("pyarrow.compute")


@cache
def ipc() -> Any:
    """Return the module pyarrow.ipc."""
    return _load("pyarrow.ipc")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            "staged rows need pyarrow, which is not installed: pip install '.[arrow]' in a checkout"
        ) from error
