"""What damage the engine does not see, because the format has no checksum there; each is a row in
tests/PROMISES.md. Nothing else may go unseen.

| what                                   | then                             | seen by           |
|----------------------------------------|----------------------------------|-------------------|
| the tags code of a queue unit          | pulls by tag pass it over; a     | verify_directory, |
| (8 of 20 bytes)                        | level's message has another time | store.verify      |
| topics.json, consumerOffset.json       | queues without messages are      | nobody: as new,   |
| deleted, empty or zeros                | gone; groups begin anew          | as for a broker   |
| the last segment, the watermark and    | what was in it counts as a torn  | nobody: nothing   |
| the counts of a store that was killed, | tail, and is cut                 | says it was there |
| all three lost (no pair is so)         |                                  |                   |
"""

from pathlib import Path

from timerstore import StoreConfig, verify_directory

_ANEW = ("config/topics.json", "config/consumerOffset.json")


def is_known(name: str, config: StoreConfig, root: Path) -> bool:
    """Whether a wrong answer is one of these. `root`: the directory, damaged as it was."""
    file = name.split(" ", maxsplit=1)[0]
    parts = [part.split(" ") for part in name.split(", ")]
    if any(part[0] in _ANEW and part[1] in {"deleted", "emptied", "zeroed"} for part in parts):
        return True
    if file in _ANEW and name.endswith(("zeros", "cut to 0 bytes")):
        return True
    if not any(part[0].startswith("consumequeue/") for part in parts):
        return False
    if " bit " in name and int(name.split(" ")[2]) % 20 < 12:
        return False
    report = verify_directory(root, config)
    return any("consumequeue" in problem.where for problem in report.problems)
