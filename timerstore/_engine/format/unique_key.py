"""Message ids: UNIQ_KEY of what this engine writes.

Data:     32 upper-case hex digits: address (4 bytes), low half of the process id (2), random
          bits of this opening (4), counter (6). The ancestor's have the same length and are
          compared as text.
Holds:    two ids differ while address, process or opening differ, and within 2^48 puts of one.
"""

import ipaddress
import re

from timerstore.receipts import unique_key

__all__ = ["format_unique_key", "make_prefix", "split_unique_key"]

PREFIX_CHARACTERS = 20
_KEY = re.compile(r"[0-9A-F]{32}")


def make_prefix(ip: str, pid: int, random_bits: int) -> str:
    """Make the 20 hex digits that all ids of one opening begin with.

    Of an IPv6 address the last four bytes count. `random_bits` are 32, new at every opening.
    """
    address = ipaddress.ip_address(ip).packed[-4:]
    return f"{address.hex().upper()}{pid & 0xFFFF:04X}{random_bits & 0xFFFFFFFF:08X}"


def format_unique_key(prefix: str, counter: int) -> str:
    """Give the id that a counter makes under a prefix."""
    return unique_key(prefix, counter)


def split_unique_key(key: str) -> tuple[str, int] | None:
    """Take an id of our form into prefix and counter; None where it has another form."""
    if not _KEY.fullmatch(key):
        return None
    return key[:PREFIX_CHARACTERS], int(key[PREFIX_CHARACTERS:], 16)
