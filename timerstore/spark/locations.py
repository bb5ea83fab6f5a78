"""Parse the locations of stores, inputs, outputs and reports, for the data source and all jobs.

A location is a directory or file of a file system that is mounted on every host. It is given as a
plain path or as a percent-encoded `file:` URL. Every other URL is rejected, because Python code
would use it as a relative path. Object stores would be added to `local_path`.

Raises: ConfigError. Jobs check their locations before they start a session.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from timerstore.errors import ConfigError, quoted

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.DOTALL | re.IGNORECASE)


def local_path(what: str, location: str) -> Path:
    """Return the path of a location. `what` names the argument in the error.

    A relative path stays relative. A relative path with a colon before its first slash is written
    with a leading "./".

    Raises:
        ConfigError: empty, or a URL of another scheme or host.
    """
    if not location:
        raise ConfigError(f"{what}: wanted a path or a file: URL, got ''")
    scheme = _SCHEME.match(location)
    if scheme is None and not location.lower().startswith("file:"):
        return Path(location)
    found = _FILE.fullmatch(location)
    if found is None:
        raise ConfigError(
            f"{what}: wanted a path mounted on every host, as /dir or file:///dir, got "
            f"{quoted(location)}; object stores and other file systems are not supported"
        )
    return Path(unquote(found[1]))
