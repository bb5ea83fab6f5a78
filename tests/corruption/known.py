"""List the damage that the engine does not detect, because the format has no checksum there.

Each entry is a row in tests/PROMISES.md. All other damage must be detected.

| damage                                 | result                           | detection         |
|----------------------------------------|----------------------------------|-------------------|
| topics.json, consumerOffset.json       | queues without messages are      | none: it looks    |
| deleted, empty or zeros                | gone; groups start from scratch  | like a new store  |
| the last segment, the watermark and    | the segment counts as a torn     | none: no file     |
| the counts of a killed store, all      | tail, and is cut                 | names the lost    |
| three lost (no pair is enough)         |                                  | segment           |
"""

_ANEW = ("config/topics.json", "config/consumerOffset.json")


def is_known(name: str) -> bool:
    """Return whether a wrong answer is one of these gaps."""
    parts = [part.split(" ") for part in name.split(", ")]
    if any(part[0] in _ANEW and part[1] in {"deleted", "emptied", "zeroed"} for part in parts):
        return True
    file = name.split(" ", maxsplit=1)[0]
    return file in _ANEW and name.endswith(("zeros", "cut to 0 bytes"))
