"""Files: the only access to the operating system, and the rules that all files of a store follow.

disk.py                files and directories by name
file.py                one open file
anchor.py              paths below a root directory, reached without following links
os_errors.py           errors of the operating system as errors of the store
read_only_disk.py      a disk that rejects every call that writes
segment_files.py       one append-only space in files of equal size
segments.py            the same with maps for C, and retention
guarded_map.py         a mapped file that another process may truncate
directory.py           the locks of a store directory, and whether the store was closed
staged_directory.py    a directory that gets its name once it is complete
geometry.py            sizes that existing files show
paths.py               paths that callers pass
descriptors.py         keeps files away from standard input, output and error
epochs.py              readers by the epoch in which they started

Invariants:
    1. No other package makes system calls for a file that the engine writes.
    2. A file's name is durable before its contents count.
    3. One process writes in a directory.
"""
