"""One finding of `doctor`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Severity(StrEnum):
    """How much a finding matters. Only CHANGE makes the exit code 1."""

    OK = "ok"
    NOTE = "note"
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class Finding:
    """A result about a subject: its text, the reason it matters, and the command to type."""

    about: str
    level: Severity
    what: str
    why: str = ""
    do: str = ""


def fine(about: str, what: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(about, Severity.OK, what)


def remark(about: str, what: str, why: str, do: str = "") -> Finding:
    """Return a finding that may matter."""
    return Finding(about, Severity.NOTE, what, why, do)


def change(about: str, what: str, why: str, do: str) -> Finding:
    """Return a finding that must be changed."""
    return Finding(about, Severity.CHANGE, what, why, do)


def text_of(path: str) -> str:
    """Return the text of a file of /proc or /sys; empty if it cannot be read."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
