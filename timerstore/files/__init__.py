"""Files: the one way from the engine to the operating system, and what is true of any file of ours.

disk.py        opens, writes, syncs, maps; every system call of the engine
segments.py    one append-only space in files of one size
directory.py   who holds the directory, and whether it was closed
building.py    a folder that gets its name when it is whole
geometry.py    the sizes that the files of a directory show
paths.py       paths as callers give them

Holds:    (1) no other room calls the system for a file it writes; (2) a file's name is durable
          before what is in it counts; (3) one process writes in one directory.
"""
