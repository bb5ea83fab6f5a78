"""Check paths that callers pass: a path that no file can have raises ConfigError.

Without these checks the operating system's calls would raise ValueError for NUL, RuntimeError for
links in a circle, and other errors for a working directory that was removed.
"""

import os
import re
from pathlib import Path

from timerstore._engine.storage.os_errors import check_of_system
from timerstore.errors import ConfigError, quoted


def path_text(what: str, path: object) -> str:
    """Return a folder's path as text. `what` names the argument in the error.

    Raises:
        ConfigError: not a path, empty, with a NUL, or not encodable for the file system.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise ConfigError(f"{what}: wanted text or a path, got {quoted(path)}")
    if not text:  # as a Path it would be the working directory
        raise ConfigError(f"{what}: wanted a folder, got {quoted(path)}")
    if "\0" in text:
        raise ConfigError(f"{what}: wanted a path without NUL, got {quoted(text)}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{what}: wanted a path that the file system can encode, got {text!a}"
        ) from error
    return text


def absolute_path(what: str, path: object) -> Path:
    """Return a folder's absolute path, so that a later change of directory does not change it.

    Links in the path are followed at each use.

    Raises:
        ConfigError: not a path, or relative to a working directory that was removed.
    """
    text = path_text(what, path)
    try:
        return Path(text).absolute()
    except OSError as error:
        check_of_system(error)
        raise ConfigError(
            f"{what}: wanted an absolute path, as the working directory is gone, got {quoted(text)}"
        ) from error


MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # blanks and the like, as octal numbers


def is_mount_point(path: Path) -> bool:
    """Return whether a path that `resolved_path` returned is a mount point.

    This includes a folder of the same disk that is mounted there (a bind mount). Its device number
    is the same, so /proc/self/mountinfo is read.
    """
    if path.is_mount():
        return True
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError as error:
        check_of_system(error)
        return False
    expected = os.fsencode(path)
    fields = (line.split(b" ")[4:5] for line in lines)
    return any(_ESCAPED.sub(_unescaped, one) == expected for field in fields for one in field)


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8) & 0xFF])


def resolved_path(what: str, path: Path) -> Path:
    """Return the absolute path without links and dots.

    Raises:
        ConfigError: links lead in a circle.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        check_of_system(error)
        raise ConfigError(f"{what}: wanted a path without a circle of links, got {path}") from error
