"""Import obstore, which only buckets need.

Raises: ConfigError, with the package to install.
"""

import importlib
from functools import cache
from typing import Any

from timerstore.errors import ConfigError


@cache
def obstore() -> Any:
    """Return the module obstore, with `store` and `exceptions`."""
    try:
        importlib.import_module("obstore.store")
        return importlib.import_module("obstore")
    except ImportError as error:
        raise ConfigError(
            "buckets need obstore, which is not installed: pip install '.[cloud]' in a checkout"
        ) from error
