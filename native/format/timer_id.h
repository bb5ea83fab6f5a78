/* Timer id as property text: the value of TS_ID, a property of timerstore's own.
 *
 *  0          4           12 bytes          as text: 16 characters, 6 bits each
 *  | store id | timer id  |      ------->   AAAAAQAAAAAAAAAH
 *
 * | offset | bytes | type | unit | meaning                                                      |
 * |--------|-------|------|------|--------------------------------------------------------------|
 * | 0      | 4     | u32  | -    | the store that assigned the id                               |
 * | 4      | 8     | u64  | -    | the id: queue offset of the timer's first record             |
 *
 * Byte order: big-endian; then base64 with - and _ (URL-safe), without padding, as 12 is a
 * multiple of 3.
 *
 * Valid if and only if: all 16 characters are of that alphabet.
 *
 * TS_PLACE has a value of the same form, on a copy that rolled or that retention moved: the store,
 * and the copy's own queue offset instead of the id. If both match, the copy's TS_ID is genuine. A
 * source needs no TS_PLACE, because its id is its own queue offset.
 *
 * Versions: timerstore 0.1.
 */
#ifndef TS_FORMAT_TIMER_ID_H
#define TS_FORMAT_TIMER_ID_H

#include "format/bytes.h"

#define TS_TIMER_ID_BYTES 12
#define TS_TIMER_ID_TEXT_BYTES 16

_Static_assert(TS_TIMER_ID_BYTES / 3 * 4 == TS_TIMER_ID_TEXT_BYTES, "base64 without padding");

/* Return eight bytes with a 1 for each byte that is not below `least`. Each of the bytes is below
 * 64. */
static inline uint64_t ts_bytes_from(uint64_t bytes, uint64_t least)
{
    const uint64_t ones = 0x0101010101010101u;

    return (bytes + ones * (128 - least)) >> 7 & ones;
}

/* Write eight characters of six bits each (A-Z, a-z, 0-9, - and _), all eight at once. */
static inline void ts_base64_48_put(uint8_t *at8, uint64_t bits)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t six = (bits & 0xFFFFFFu) | (bits >> 24) << 32;

    six = (six & 0x00000FFF00000FFFu) | (six & 0x00FFF00000FFF000u) << 4;
    six = (six & 0x003F003F003F003Fu) | (six & 0x0FC00FC00FC00FC0u) << 2;
    /* Each range of the alphabet continues the range before it, shifted by a constant. */
    ts_put_u64(at8, six + ones * 'A' + ts_bytes_from(six, 26) * ('a' - 'Z' - 1) -
                        ts_bytes_from(six, 52) * ('z' + 1 - '0') -
                        ts_bytes_from(six, 62) * ('9' + 1 - '-') +
                        ts_bytes_from(six, 63) * ('_' - '-' - 1));
}

static inline void ts_timer_id_put(uint8_t *at16, uint32_t store_id, uint64_t id)
{
    ts_base64_48_put(at16, (uint64_t)store_id << 16 | id >> 48);
    ts_base64_48_put(at16 + 8, id & 0xFFFFFFFFFFFFu);
}

/* Return the six bits of a character, or 64 or more if it is not of the alphabet. */
static inline uint64_t ts_timer_id_digit(uint8_t c)
{
    static const uint8_t digits[128] = {
        64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
        64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
        64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 62, 64, 64,
        52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 64, 64, 64, 64, 64, 64,
        64,  0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14,
        15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 64, 64, 64, 64, 63,
        64, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40,
        41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 64, 64, 64, 64, 64,
    };

    return digits[c & 127] | (c & 128);
}

/* Read eight characters. Return 0, or -1 if not all are of the alphabet. */
static inline int ts_base64_48_get(const uint8_t *at8, uint64_t *bits)
{
    uint64_t seen = 0, found = 0;

    for (int i = 0; i < 8; i++) {
        uint64_t digit = ts_timer_id_digit(at8[i]);

        seen |= digit;
        found = found << 6 | (digit & 63);
    }
    *bits = found;
    return seen & 192 ? -1 : 0;
}

/* Join eight bytes of six bits each to 48 bits. */
static inline uint64_t ts_six_bits_joined(const uint8_t *at8)
{
    uint64_t six = ts_get_u64(at8);

    six = (six & 0x003F003F003F003Fu) | (six & 0x3F003F003F003F00u) >> 2;
    six = (six & 0x00000FFF00000FFFu) | (six & 0x0FFF00000FFF0000u) >> 4;
    return (six & 0xFFFFFFu) | (six >> 32) << 24;
}

/* Read a timer id. Return 0, or -1 if the 16 characters are not one. All characters are checked at
 * once, because every timer's id is read at each step. A character above 127 is negative, so it is
 * in no range. */
static inline int ts_timer_id_get(const uint8_t *at16, uint32_t *store_id, uint64_t *id)
{
    typedef int8_t sixteen __attribute__((vector_size(16)));
    sixteen c, upper, lower, digit, dash, line, known;
    uint64_t found[2], high, low;
    uint8_t six[16];

    memcpy(&c, at16, sizeof c);
    upper = (sixteen)(c >= 'A') & (sixteen)(c <= 'Z');
    lower = (sixteen)(c >= 'a') & (sixteen)(c <= 'z');
    digit = (sixteen)(c >= '0') & (sixteen)(c <= '9');
    dash = (sixteen)(c == '-');
    line = (sixteen)(c == '_');
    known = upper | lower | digit | dash | line;
    memcpy(found, &known, sizeof found);
    if ((found[0] & found[1]) != UINT64_MAX)
        return -1;
    c -= (upper & 'A') | (lower & ('a' - 26)) | (line & ('_' - 63));
    c += (digit & (52 - '0')) | (dash & (62 - '-'));
    memcpy(six, &c, sizeof six);
    high = ts_six_bits_joined(six);
    low = ts_six_bits_joined(six + 8);
    *store_id = (uint32_t)(high >> 16);
    *id = (high & 0xFFFFu) << 48 | low;
    return 0;
}

#endif
