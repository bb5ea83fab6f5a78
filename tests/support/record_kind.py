"""The kinds of scanned records, as names; a test compares them with those of C."""

from enum import IntEnum


class RecordKind(IntEnum):
    """The kind of a scanned record, numbered as enum ts_kind of native/api."""

    ORDINARY = 0
    TIMER = 1
    DELETE = 2
    DELIVERED = 3
    LEVEL = 4
    LEVEL_DELIVERED = 5
    UNUSABLE = 6
    LEVEL_UNUSABLE = 7
