"""Bytes to records and back, and the names of files. Nothing here opens a file.

One module per format. Formats that C reads take their numbers from the C library; names, handles
and JSON are read and written only here.
"""
