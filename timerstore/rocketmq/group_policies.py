"""The policy of each consumer group: attempts, back-off, polls and leases, from a TOML file.

    [default]                       # of all groups without a table of their own
    max_attempts = 17

    [groups."billing"]              # what it leaves out is that of [default]
    max_attempts = 3
    backoff_s = [1, 5]

Raises: ConfigError with every problem of the file.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from timerstore._engine.read.groups import check_name
from timerstore._engine.storage.anchor import absolute_path
from timerstore.errors import ConfigError, MessageError, quoted

_BACKOFF_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""The delay levels of RocketMQ."""
_RANGES = {"max_attempts": (1, 1_000_000), "poll_s": (1, 600), "consume_timeout_s": (1, 2_592_000)}
_BACKOFF_RANGE_S = (1, 2_592_000)
_STEPS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPolicy:
    """The policy of a group. The same value serves Telemetry, ReceiveMessage and dead letters."""

    max_attempts: int = 17
    """Deliveries of a message to the group; after the last one it is a dead letter."""
    backoff_s: tuple[int, ...] = _BACKOFF_S
    """Seconds until a message that a push consumer failed is delivered again, by attempt."""
    poll_s: int = 20
    """Seconds that a ReceiveMessage waits, unless the client asks for another time."""
    consume_timeout_s: int = 900
    """The lease of a message of a push consumer, whose client asks for none."""
    fifo: bool = False
    """Whether messages of a message group come one after another (`receive(ordered=True)`)."""


@dataclass(frozen=True, slots=True)
class GroupPolicies:
    """The policies of all groups."""

    default: GroupPolicy = field(default_factory=GroupPolicy)
    by_group: Mapping[str, GroupPolicy] = field(default_factory=dict)

    def of(self, group: str) -> GroupPolicy:
        """Return the policy of a group."""
        return self.by_group.get(group, self.default)


def read_policies(path: str | os.PathLike[str]) -> GroupPolicies:
    """Return the policies in a TOML file."""
    file = absolute_path("groups_file", path)
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"groups_file: cannot read {file} ({error})") from error
    return _checked(content, file)


def _checked(content: Mapping[str, Any], file: Path) -> GroupPolicies:
    problems = [
        f"{name}: wanted the tables default and groups" for name in content
        if name not in ("default", "groups")
    ]  # fmt: skip
    default = _policy("default", content.get("default", {}), GroupPolicy(), problems)
    tables = content.get("groups", {})
    if not isinstance(tables, dict):
        problems.append(f"groups: wanted a table for each group, got {quoted(tables)}")
        tables = {}
    by_group = {}
    for group, table in tables.items():
        try:
            check_name("group", group)
        except MessageError as error:
            problems.extend(error.problems)
        by_group[group] = _policy(f'groups."{group}"', table, default, problems)
    if problems:
        raise ConfigError([f"groups_file: {one}; at {file}" for one in problems])
    return GroupPolicies(default, by_group)


def _policy(where: str, table: Any, default: GroupPolicy, problems: list[str]) -> GroupPolicy:
    if not isinstance(table, dict):
        problems.append(f"{where}: wanted a table, got {quoted(table)}")
        return default
    known = [one.name for one in fields(GroupPolicy)]
    before = len(problems)
    for name, value in table.items():
        if name == "backoff_s":
            problems.extend(_backoff_problems(f"{where}.{name}", value))
        elif name == "fifo":
            if type(value) is not bool:
                problems.append(f"{where}.{name}: wanted true or false, got {quoted(value)}")
        elif name in _RANGES:
            low, high = _RANGES[name]
            if type(value) is not int or not low <= value <= high:
                problems.append(f"{where}.{name}: wanted {low} to {high}, got {quoted(value)}")
        else:
            problems.append(f"{where}.{name}: wanted one of {', '.join(known)}")
    if len(problems) > before:
        return default
    changes: dict[str, Any] = {name: tuple(value) if name == "backoff_s" else value
               for name, value in table.items()}  # fmt: skip
    return replace(default, **changes)


def _backoff_problems(where: str, value: Any) -> list[str]:
    low, high = _BACKOFF_RANGE_S
    if not isinstance(value, list) or not 1 <= len(value) <= _STEPS_MAX:
        return [f"{where}: wanted 1 to {_STEPS_MAX} numbers of seconds, got {quoted(value)}"]
    return [
        f"{where}[{k}]: wanted {low} to {high} whole seconds, got {quoted(one)}"
        for k, one in enumerate(value) if type(one) is not int or not low <= one <= high
    ]  # fmt: skip
