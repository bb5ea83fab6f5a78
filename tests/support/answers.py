"""Tables of answers: the expected answer of each of many cases, in a JSON file next to the test.

TIMERSTORE_WRITE_ANSWERS=1 pytest tests/...     # writes what the cases give now; read the diff
"""

import json
import os
from pathlib import Path
from typing import Any

IS_WRITING = bool(os.environ.get("TIMERSTORE_WRITE_ANSWERS"))


class Answers:
    """The table of one test file. Writing needs a single process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def check(self, case: str, found: Any) -> None:
        """Compare the result of a case with the table, or add it when tables are written."""
        if IS_WRITING:
            self._known[case] = found
            rows = sorted(self._known.items())
            lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in rows]
            self._path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        assert case in self._known, f"{case}: not in {self._path.name}; it gave {found}"
        assert found == self._known[case], f"{case}: wanted {self._known[case]}, got {found}"
