"""Roots: the directory that a path means, in options of readers and of writers alike.

Holds:    a directory that every host has mounted: a plain path, or a file: URI, percent-encoded as
          URIs are. Nothing else is taken for a path.
Fails:    ConfigError.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from timerstore.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.DOTALL | re.IGNORECASE)


def root_of(path: str) -> Path:
    """Give the directory."""
    scheme = _SCHEME.match(path)
    if scheme is None and not path.lower().startswith("file:"):
        return Path(path)
    found = _FILE.fullmatch(path)
    if found is None:
        raise ConfigError(
            "path: wanted a directory that every host has mounted, as /dir or file:///dir, got "
            f"{path!r}"
        )
    return Path(unquote(found[1]))
