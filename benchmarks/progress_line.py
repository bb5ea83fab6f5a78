"""A line of progress, written at most once a second: not every output is a terminal."""

from tqdm import tqdm  # type: ignore[import-untyped]


def progress_line(total: int, unit: str, *, quiet: bool) -> tqdm:
    """Return a line that counts up to `total`."""
    return tqdm(total=total, unit=unit, disable=quiet, mininterval=1.0)
