"""Folders of files that are named by 20 digits, such as those of the commit log."""

import re
from pathlib import Path


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Return (start offset, file) of the 20-digit files of a folder, in order."""
    if not folder.is_dir():
        return []
    names = sorted(path.name for path in folder.iterdir() if re.fullmatch(r"[0-9]{20}", path.name))
    return [(int(name), folder / name) for name in names]


def read_at(folder: Path, offset: int, size: int) -> bytes:
    """Read `size` bytes at an offset of a folder's space, or fewer at the end of a file."""
    for start, path in segments(folder):
        if start <= offset < start + path.stat().st_size:
            with path.open("rb") as file:
                file.seek(offset - start)
                return file.read(size)
    return b""
