"""Writes format/crc32_table.h: the numbers that base/checksum.c multiplies and looks up with.

Data:     polynomials over GF(2), held in an int: bit n is the coefficient of x^n.
Holds:    every number is computed here from the CRC's polynomial; none is copied from anywhere.
Source:   the division below; test/test_checksum.c compares the outcome with the definition.

In the CRC's "reflected" order the first bit of a byte stream, bit 0, has the highest power. So a
64-bit half whose bit j stands for x^(63-j), times another such, gives bit k for x^(126-k), while
a 128-bit register wants x^(127-k): each product comes out multiplied by x, and the factors below
are one power short where that matters. checksum.c draws which factor goes where.
"""

import os
import sys
from pathlib import Path

POLYNOMIAL = 0x104C11DB7
"""The CRC-32 of IEEE 802.3, of degree 32."""

SLICES = 16
LANE_BITS = 128


def remainder(dividend: int) -> int:
    """Give what is left of a polynomial after division by POLYNOMIAL."""
    return divide(dividend)[1]


def divide(dividend: int) -> tuple[int, int]:
    """Give quotient and remainder of a polynomial divided by POLYNOMIAL."""
    quotient = 0
    while dividend.bit_length() >= POLYNOMIAL.bit_length():
        shift = dividend.bit_length() - POLYNOMIAL.bit_length()
        quotient |= 1 << shift
        dividend ^= POLYNOMIAL << shift
    return quotient, dividend


def reflect(value: int, bits: int) -> int:
    """Give the same bits, the last first."""
    return int(format(value, f"0{bits}b")[::-1], 2)


def slice_tables() -> list[list[int]]:
    """Give tables[n][b]: what byte b adds to the CRC when n more bytes follow it, all zero."""
    first = [reflect(remainder(reflect(byte, 8) << 32), 32) for byte in range(256)]
    tables = [first]
    for _ in range(SLICES - 1):
        tables.append([entry >> 8 ^ first[entry & 255] for entry in tables[-1]])
    return tables


def constants() -> dict[str, int]:
    """Name the factors of the folding and of the last reduction."""
    found: dict[str, int] = {}
    for lanes in (1, 2, 4, 8, 16):
        bits = lanes * LANE_BITS
        # Low half: 64 powers above the high half, hence 64 more.
        found[f"FOLD_{bits}_LOW"] = reflect(remainder(1 << (bits + 63)), 32) << 32
        found[f"FOLD_{bits}_HIGH"] = reflect(remainder(1 << (bits - 1)), 32) << 32
    # Register of 96 bits, bit k for x^(95-k): a factor's bit j stands for x^(32-j).
    found["REDUCE_96"] = reflect(remainder(1 << 96), 32) << 1
    # x^95 divided: the least power whose quotient gives that of any 96-bit polynomial exactly.
    found["QUOTIENT_95"] = reflect(divide(1 << 95)[0], 64)
    found["POLYNOMIAL_33"] = reflect(POLYNOMIAL, 33)
    return found


def crc_table_text() -> str:
    """Give the whole header."""
    lines = [
        "/* Made by native/crc_table.py, which says what the numbers mean. Not to be edited. */",
        "#ifndef TS_FORMAT_CRC32_TABLE_H",
        "#define TS_FORMAT_CRC32_TABLE_H",
        "",
        "#include <stdint.h>",
        "",
    ]
    lines += [f"#define TS_CRC32_{name} 0x{value:016X}" for name, value in constants().items()]
    lines += ["", f"static const uint32_t ts_crc32_tables[{SLICES}][256] = {{"]
    for table in slice_tables():
        lines.append("    {")
        for at in range(0, 256, 6):
            row = ", ".join(f"0x{entry:08X}u" for entry in table[at : at + 6])
            lines.append(f"        {row},")
        lines.append("    },")
    lines += ["};", "", "#endif", ""]
    return "\n".join(lines)


def write_crc_table(path: str | os.PathLike[str]) -> None:
    """Make the file at path say what it should; one that does is left alone, with its time.

    A build that runs beside this one sees the old file or the new one, never a part.
    """
    text = crc_table_text()
    table = Path(path)
    if table.exists() and table.read_text(encoding="ascii", errors="replace") == text:
        return
    fresh = table.with_name(f"{table.name}.{os.getpid()}.new")
    fresh.write_text(text, encoding="ascii")
    fresh.replace(table)


if __name__ == "__main__":
    write_crc_table(sys.argv[1])
