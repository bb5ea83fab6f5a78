"""Convert the option `path` of readers and writers to a directory.

The directory must be mounted on every host. It is given as a plain path or as a percent-encoded
`file:` URI. All other URI schemes are rejected.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from timerstore.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.DOTALL | re.IGNORECASE)


def root_of(path: str) -> Path:
    """Return the directory of a path or `file:` URI. Raise ConfigError for other URIs."""
    scheme = _SCHEME.match(path)
    if scheme is None and not path.lower().startswith("file:"):
        return Path(path)
    found = _FILE.fullmatch(path)
    if found is None:
        raise ConfigError(
            f"path: wanted a directory mounted on every host, as /dir or file:///dir, got {path!r}"
        )
    return Path(unquote(found[1]))
