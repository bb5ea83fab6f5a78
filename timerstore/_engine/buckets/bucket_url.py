"""Parse locations: a local path, a `file:` URL, or the URL of a bucket.

A plain path is used as it is. A `file:` URL is percent-encoded. The URL of a bucket is not decoded:
its path is a prefix of object names.

Raises: ConfigError. The text of a URL that may have a password is not shown.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from timerstore.errors import ConfigError, quoted

# --- bucket url ---


SCHEMES = ("s3", "s3a", "gs", "abfss")
"""The schemes of buckets. s3a is the name that Hadoop has for s3."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.DOTALL | re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_AZURE_HOST = re.compile(r"[a-z0-9][a-z0-9-]*@[A-Za-z0-9.-]+")
_SEGMENT = re.compile(r"[A-Za-z0-9._=+,:~!-]+")


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """A bucket and a prefix of object names in it."""

    scheme: str
    host: str
    """The bucket, or for Azure container@account."""
    prefix: str
    """Without a slash at either end; "" for the whole bucket."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}/{self.prefix}".rstrip("/")

    def below(self, path: str) -> "BucketUrl":
        """Return the URL of a longer prefix."""
        return BucketUrl(self.scheme, self.host, f"{self.prefix}/{path}".strip("/"))


def location_of(what: str, location: str | os.PathLike[str]) -> Path | BucketUrl:
    """Return the path or the bucket of a location. `what` names the argument in the error.

    A relative path stays relative. A relative path with a colon before its first slash is written
    with a leading "./". A path object is always a path.

    Raises:
        ConfigError: not text or a path, empty, a URL of another scheme or host, or a name that is
            not accepted.
    """
    if isinstance(location, os.PathLike):
        return Path(location)
    if not isinstance(location, str) or not location:  # type: ignore[redundant-expr]
        raise ConfigError(f"{what}: wanted a path or a URL, got {quoted(location)}")
    scheme = _SCHEME.match(location)
    if scheme is None and not location.lower().startswith("file:"):
        return Path(location)
    if scheme is not None and scheme[1].lower() in SCHEMES:
        return _bucket_url(what, location, scheme[1].lower())
    found = _FILE.fullmatch(location)
    if found is None:
        may_have_secret = scheme is not None and re.search("[@?]", location)
        shown = f"{scheme[1]}:... (not shown)" if scheme and may_have_secret else quoted(location)
        raise ConfigError(
            f"{what}: wanted a path mounted on every host, as /dir or file:///dir, or a bucket, as "
            f"{', '.join(one + '://' for one in SCHEMES)}; got {shown}"
        )
    return Path(unquote(found[1]))


def _bucket_url(what: str, location: str, scheme: str) -> BucketUrl:
    host, _, prefix = location[len(scheme) + 1 :].removeprefix("//").partition("/")
    wanted = _AZURE_HOST if scheme == "abfss" else _HOST
    if not location[len(scheme) + 1 :].startswith("//") or not wanted.fullmatch(host):
        form = "abfss://container@account.dfs.core.windows.net" if scheme == "abfss" else (
            f"{scheme}://bucket"
        )  # fmt: skip
        # Not shown: it may be scheme://key:secret@bucket.
        raise ConfigError(f"{what}: wanted {form}/prefix, without credentials, got another form")
    prefix = prefix.rstrip("/")
    wrong = [
        one
        for one in (prefix.split("/") if prefix else [])
        if not _SEGMENT.fullmatch(one) or set(one) == {"."}
    ]
    if wrong:
        raise ConfigError(
            f"{what}: wanted names of letters, digits and ._=+,:~!- between slashes, got "
            f"{quoted(wrong[0])}"
        )
    return BucketUrl(scheme, host, prefix)


# --- storage options ---
# Settings of obstore that callers pass: check them, and keep their values out of errors.
#
# Raises: ConfigError. It names options, never their values.


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
