"""Parse the locations of stores, inputs, outputs and reports, for the data source and all jobs.

A location is a directory or file of a file system that is mounted on every host, as a plain path or
a percent-encoded `file:` URL; or, where the documents say so, the URL of a bucket. Every other URL
is rejected, because Python code would use it as a relative path. `buckets.location_of` parses all
of them.

Raises: ConfigError. Jobs check their locations before they start a session.
"""

from collections.abc import Mapping
from pathlib import Path

from timerstore._engine.buckets import BucketUrl, location_of
from timerstore._engine.buckets.backup_copy import find_backups
from timerstore.errors import ConfigError, quoted

STORAGE_PREFIX = "storage."
"""Options with this prefix are settings of the bucket's service."""


def local_path(what: str, location: str) -> Path:
    """Return the path of a location that cannot be a bucket. `what` names the argument in errors.

    A relative path stays relative. A relative path with a colon before its first slash is written
    with a leading "./".

    Raises:
        ConfigError: empty, or a URL of another scheme or host.
    """
    found = location_of(what, location)
    if isinstance(found, BucketUrl):
        raise ConfigError(
            f"{what}: wanted a path mounted on every host, as /dir or file:///dir, got "
            f"{quoted(location)}; a bucket cannot be used here"
        )
    return found


def store_paths(location: str) -> tuple[Path, ...]:
    """Return the local paths of a store or directory of shards; none for an empty location.

    A backup in a bucket is copied to this host, and these are the paths of the copy of each shard.
    """
    if not location:
        return ()
    found = location_of("path", location)
    if isinstance(found, BucketUrl):
        return tuple(one.ensure() for one in find_backups(found))
    return (found,)


def split_storage(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide options into those of the data source and those of the bucket's service.

    The latter are returned without their prefix.
    """
    own, storage = {}, {}
    for name, value in given.items():
        if name.lower().startswith(STORAGE_PREFIX):
            storage[name[len(STORAGE_PREFIX) :].lower()] = value
        else:
            own[name] = value
    return own, storage
