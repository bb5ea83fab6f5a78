"""Paths as callers give them: one that no file can have is the caller's fault, a ConfigError.

The system's own calls say ValueError to a NUL, RuntimeError to links in a circle, and whatever else
to a folder that the process stands in and that is gone.
"""

import os
from pathlib import Path

from timerstore.errors import ConfigError
from timerstore.quoted import quoted


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


def led_to(what: str, path: Path) -> Path:
    """Give where a path leads, from the root on, without links and dots. ConfigError where it
    leads in a circle.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{what}: wanted a path that leads somewhere, got {path}") from error
