"""Files: the only access to the operating system, and the rules that all files of a store follow.

disk.py            files and directories by name; a disk that rejects every call that writes
file.py            one open file, and errors of the operating system as errors of the store
anchor.py          paths that callers pass, and paths below a root, without following links
segment_files.py   one append-only space in files of equal size
segments.py        the same with maps for C, and retention
guarded_map.py     a mapped file that another process may truncate
directory.py       the locks of a store directory, whether the store was closed, and a directory
                   that gets its name once it is complete
geometry.py        sizes that existing files show

Invariants:
    1. No other package makes system calls for a file that the engine writes.
    2. A file's name is durable before its contents count.
    3. One process writes in a directory.
"""
