"""Files: the only access to the operating system, and rules that all our files follow.

disk.py                opens, writes, syncs and maps files: every system call of the engine
read_only_disk.py      the same without any call that writes
segments.py            one append-only space in files of equal size
guarded_map.py         a mapped file that another process may truncate
directory.py           who owns the directory, and whether it was closed
staged_directory.py    a directory that gets its name once it is complete
geometry.py            sizes that existing files show
paths.py               paths as callers give them
descriptors.py         keeps files away from standard input, output and error
epochs.py              whether a reader that began earlier still reads

Invariants:
    1. No other package makes system calls for a file that the engine writes.
    2. A file's name is durable before its contents count.
    3. One process writes in a directory.
"""
