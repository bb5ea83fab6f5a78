"""The JSON files of the config folder, and the abort file."""

import json
import re
from pathlib import Path
from typing import Any


def parse_loose_json(text: str) -> Any:
    """Parse JSON whose integer keys may have no quotes, as RocketMQ writes maps."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for place in range(0, len(parts), 2):  # text between strings
        parts[place] = re.sub(r"([{,]\s*)(-?[0-9]+)(\s*:)", r'\1"\2"\3', parts[place])
    return json.loads("".join(parts))


def read_json(path: Path) -> Any:
    """Read a configuration file, or its .bak if it is invalid; return None without both."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            return parse_loose_json(candidate.read_text("utf-8"))
        except (OSError, ValueError):
            continue
    return None


def read_topics(root: Path) -> dict[str, dict[str, Any]]:
    """Read the entry of each topic in config/topics.json."""
    found = read_json(root / "config" / "topics.json")
    return dict(found["topicConfigTable"]) if found else {}


def read_timer_metrics(root: Path) -> dict[str, int]:
    """Read the count of pending messages of each real topic in config/timermetrics."""
    found = read_json(root / "config" / "timermetrics")
    if not found:
        return {}
    return {topic: int(entry["count"]) for topic, entry in found["timingCount"].items()}


def read_level_offsets(root: Path) -> dict[int, int]:
    """Read the next queue offset of each delay level in config/delayOffset.json."""
    found = read_json(root / "config" / "delayOffset.json")
    return {int(level): int(at) for level, at in found["offsetTable"].items()} if found else {}


def is_unclean(root: Path) -> bool:
    """Return whether the file `abort` shows that the store was not closed."""
    return (root / "abort").exists()
