"""The list of repeated calls in the documentation is that of the table of calls."""

import re
from pathlib import Path

import timerstore
from timerstore.net.call_table import GIVE_BACK, STORE_CALLS, Repeat


def test_documented_repeats_equal_the_table() -> None:
    page = (Path(timerstore.__file__).parent / "docs" / "protocol.md").read_text()
    rows = page.partition("| calls | sent again |")[2].partition("\n\n")[0].splitlines()[2:]
    listed = [sorted(re.findall(r"`(\w+)`", row.split("|")[1])) for row in rows]
    kinds = (Repeat.ALWAYS, Repeat.WITH_ID, Repeat.NEVER)
    assert listed == [
        sorted(one.name for one in [*STORE_CALLS.values(), GIVE_BACK] if one.repeat is kind)
        for kind in kinds
    ]
