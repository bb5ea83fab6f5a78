"""Write format/crc32_table.h: the constants and tables of base/checksum.c.

A polynomial over GF(2) is an int: bit n is the coefficient of x^n. All numbers are computed here
from the polynomial of the CRC, by division. test/test_checksum.c compares the results with the
definition of the CRC.

In the CRC's "reflected" order the first bit of a byte stream, bit 0, has the highest power. In a
64-bit half, bit j stands for x^(63-j). The product of two halves has bit k for x^(126-k), but a
128-bit register has bit k for x^(127-k). So each product is multiplied by x, and the factors below
are one power short to compensate. checksum.c shows the use of each factor.
"""

import os
import sys
from pathlib import Path

POLYNOMIAL = 0x104C11DB7
"""The CRC-32 of IEEE 802.3, of degree 32."""

SLICES = 16
REGISTER_BITS = 128


def remainder(dividend: int) -> int:
    """Return the remainder of a polynomial divided by POLYNOMIAL."""
    return divide(dividend)[1]


def divide(dividend: int) -> tuple[int, int]:
    """Return quotient and remainder of a polynomial divided by POLYNOMIAL."""
    quotient = 0
    while dividend.bit_length() >= POLYNOMIAL.bit_length():
        shift = dividend.bit_length() - POLYNOMIAL.bit_length()
        quotient |= 1 << shift
        dividend ^= POLYNOMIAL << shift
    return quotient, dividend


def reflect(value: int, bits: int) -> int:
    """Return the bits in reverse order."""
    return int(format(value, f"0{bits}b")[::-1], 2)


def slice_tables() -> list[list[int]]:
    """Return tables[n][b]: the effect on the CRC of byte b, followed by n bytes of zero."""
    first = [reflect(remainder(reflect(byte, 8) << 32), 32) for byte in range(256)]
    tables = [first]
    for _ in range(SLICES - 1):
        tables.append([entry >> 8 ^ first[entry & 255] for entry in tables[-1]])
    return tables


def constants() -> dict[str, int]:
    """Return the factors of the folding and of the last reduction, by name."""
    found: dict[str, int] = {}
    for registers in (1, 2, 4, 8, 16):
        bits = registers * REGISTER_BITS
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
    """Return the text of the header."""
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
    """Write the header, unless the file has this text already: then its time does not change.

    A concurrent build sees the old file or the new one, never a part of one.
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
