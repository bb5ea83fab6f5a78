"""Paths as callers give them: one that no file can have is the caller's fault, a ConfigError.

The system's own calls say ValueError to a NUL, RuntimeError to links in a circle, and whatever else
to a folder that the process stands in and that is gone.
"""

import os
import re
from pathlib import Path

from timerstore.errors import ConfigError, quoted


def path_text(what: str, path: object) -> str:
    """Give a folder's path as text. ConfigError where it is none."""
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
        raise ConfigError(f"{what}: wanted a path as the system has them, got {text!a}") from error
    return text


def anchored(what: str, path: object) -> Path:
    """Give a folder's path from the root on: a relative one means what it means now, wherever the
    process goes later. Links in it are followed at each use, as before. ConfigError where it is
    not a path, or is relative to a working directory that is gone.
    """
    text = path_text(what, path)
    try:
        return Path(text).absolute()
    except OSError as error:
        raise ConfigError(
            f"{what}: wanted an absolute path, as the working directory is gone, got {quoted(text)}"
        ) from error


MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # blanks and the like, as octal numbers


def is_mount_point(path: Path) -> bool:
    """Whether something is mounted at a path that `led_to` gave; a folder of the same disk, too,
    where the system says so: its device is no other.
    """
    if path.is_mount():
        return True
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError:
        return False
    wanted = os.fsencode(path)
    places = (line.split(b" ")[4:5] for line in lines)
    return any(_ESCAPED.sub(_unescaped, one) == wanted for place in places for one in place)


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8) & 0xFF])


def led_to(what: str, path: Path) -> Path:
    """Give where a path leads, from the root on, without links and dots. ConfigError where it
    leads in a circle.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{what}: wanted a path that leads somewhere, got {path}") from error
