"""Message ids: the property UNIQ_KEY of messages that this engine writes.

Invariants:
    1. Two ids differ if the address, process or opening differs. Within one opening, 2^48 puts get
       different ids.
On-disk format: 32 upper-case hex digits: address (4 bytes), low half of the process id (2), random
    bits of this opening (4), counter (6). A broker's ids have the same length and are compared as
    text.
"""

import ipaddress
import re

from timerstore.receipts import unique_key

__all__ = ["format_unique_key", "make_prefix", "split_unique_key"]

PREFIX_CHARACTERS = 20
_KEY = re.compile(r"[0-9A-F]{32}")


def make_prefix(ip: str, pid: int, random_bits: int) -> str:
    """Return the first 20 hex digits, which all ids of one opening share.

    An IPv6 address contributes its last four bytes. `random_bits`: 32 bits, drawn at each opening.
    """
    address = ipaddress.ip_address(ip).packed[-4:]
    return f"{address.hex().upper()}{pid & 0xFFFF:04X}{random_bits & 0xFFFFFFFF:08X}"


def format_unique_key(prefix: str, counter: int) -> str:
    """Return the id for a prefix and a counter."""
    return unique_key(prefix, counter)


def split_unique_key(key: str) -> tuple[str, int] | None:
    """Return prefix and counter of an id of this engine; None if it has another form."""
    if not _KEY.fullmatch(key):
        return None
    return key[:PREFIX_CHARACTERS], int(key[PREFIX_CHARACTERS:], 16)
