"""Settings of obstore that callers pass: check them, and keep their values out of errors.

Raises: ConfigError. It names options, never their values.
"""

import re
from collections.abc import Iterable, Mapping

from timerstore.errors import ConfigError

CLIENT_NAMES = frozenset(
    {"allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type"}
    | {"http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout"}
    | {"http2_keep_alive_while_idle", "http2_max_frame_size", "http2_only", "pool_idle_timeout"}
    | {"pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url"}
    | {"randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent"}
)
"""The settings of connections. obstore has a second argument for them, and panics otherwise."""

_QUOTED = re.compile('".*"', re.DOTALL)


def split_client(options: Mapping[str, str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the service and those of connections.

    Raises:
        ConfigError: not a mapping of text to text.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(
            f"storage_options: wanted a mapping of text to text, got {type(options).__name__}"
        )
    service: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in (options or {}).items():
        if not isinstance(name, str):
            raise ConfigError(f"storage_options: wanted text as name, got {type(name).__name__}")
        if not isinstance(value, str):
            raise ConfigError(
                f"storage_options: wanted text as {name!r}, got {type(value).__name__}"
            )
        is_client = name.lower() in CLIENT_NAMES
        (client if is_client else service)[name.lower() if is_client else name] = value
    return service, client


def without_values(text: str, options: Mapping[str, str]) -> str:
    """Return a text of obstore without the values of options."""
    text = _QUOTED.sub('"..."', text)
    for value in sorted(options.values(), key=len, reverse=True):
        if value:
            text = re.sub(re.escape(value), "...", text, flags=re.IGNORECASE)
    return text


def reject_without_bucket(names: Iterable[str] | None, what: str, location: object) -> None:
    """Raise ConfigError if there are options although a location is not in a bucket.

    what: the argument with the location.
    """
    if names:
        raise ConfigError(
            f"storage_options: wanted none for a local path, got {', '.join(map(str, names))} and "
            f"{what} {location}"
        )
