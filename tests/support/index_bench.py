"""The size of small index files, and the keys of a store that fills several of them."""

from tests.support.bench import small

SLOTS, ENTRIES = 10, 60
CONFIG = small(index_slot_count=SLOTS, index_entry_count=ENTRIES)
KEYS = [f"k{n}" for n in range(12)]
