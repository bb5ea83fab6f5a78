"""What damage the engine does not see, because the format has no checksum there; each is a row in
tests/PROMISES.md. Nothing else may go unseen.

| what                                   | then                             | seen by           |
|----------------------------------------|----------------------------------|-------------------|
| topics.json, consumerOffset.json       | queues without messages are      | nobody: as new,   |
| deleted, empty or zeros                | gone; groups begin anew          | as for a broker   |
| the last segment, the watermark and    | what was in it counts as a torn  | nobody: nothing   |
| the counts of a store that was killed, | tail, and is cut                 | says it was there |
| all three lost (no pair is so)         |                                  |                   |
"""

_ANEW = ("config/topics.json", "config/consumerOffset.json")


def is_known(name: str) -> bool:
    """Whether a wrong answer is one of these."""
    parts = [part.split(" ") for part in name.split(", ")]
    if any(part[0] in _ANEW and part[1] in {"deleted", "emptied", "zeroed"} for part in parts):
        return True
    file = name.split(" ", maxsplit=1)[0]
    return file in _ANEW and name.endswith(("zeros", "cut to 0 bytes"))
