"""Convert bytes to records and back, and name files. No module here opens a file.

There is one module for each format. Formats that C also reads are defined in native/format, and
take their numbers from there. Names, handles and JSON are read and written only here.
"""
