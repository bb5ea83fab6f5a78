"""Tables of a store as plain rows, through timerstore.tables."""

from pathlib import Path
from typing import Any

Row = dict[str, Any]


def rows_of(batches: Any) -> list[Row]:
    """Return the rows of record batches, with properties as a dict."""
    found: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        for row in batch.to_pylist():
            if isinstance(row.get("properties"), list):
                pairs = row["properties"]
                row["properties"] = dict(pairs)
                assert len(row["properties"]) == len(pairs), "a name stands there twice"
            found.append(row)
    return found


def read_rows(root: Path, table: str = "messages", **how: Any) -> list[Row]:
    """Return the rows of one table, with times in ms."""
    from timerstore import tables

    how = {"times_as_long": True} | how
    return rows_of(tables.read(root, table, **how))
