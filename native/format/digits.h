/* Numbers with a fixed count of decimal digits, converted several digits in one step.
 *
 * | what       | bytes | meaning                                     |
 * |------------|-------|---------------------------------------------|
 * | eight      | 8     | ASCII digits, most significant first        |
 * | time       | 13    | milliseconds since 1970, from 2001 to 2286  |
 *
 * Valid if and only if: every byte is '0' to '9'.
 *
 * Versions: none. text.h reads the same text if its length is known.
 */
#ifndef TS_FORMAT_DIGITS_H
#define TS_FORMAT_DIGITS_H

#include "format/bytes.h"

#define TS_TIME_DIGITS 13

/* Return the eight bytes as one word, the first byte lowest. */
static inline uint64_t ts_digits_load(const uint8_t *at8)
{
    return __builtin_bswap64(ts_get_u64(at8));
}

static inline int ts_digits_are(uint64_t word)
{
    const uint64_t high = 0xF0F0F0F0F0F0F0F0u, zeros = 0x3030303030303030u;

    return (word & high) == zeros && ((word + 0x0606060606060606u) & high) == zeros;
}

/* Combine pairs, then fours, then all eight: each step joins neighbours by one product. */
static inline uint64_t ts_digits_value(uint64_t word)
{
    word = (word & 0x0F0F0F0F0F0F0F0Fu) * (1 + (10u << 8)) >> 8;
    word = (word & 0x00FF00FF00FF00FFu) * (1 + (100u << 16)) >> 16;
    return (word & 0x0000FFFF0000FFFFu) * (1 + (10000ull << 32)) >> 32;
}

/* Return the eight digits of a number below 10^8, in the form of ts_digits_load. The number is
 * split into halves, quarters and digits. Each step divides all parts at once, by a product that is
 * exact for so few digits. */
static inline uint64_t ts_digits_of(uint32_t number)
{
    uint64_t parts = number / 10000 | (uint64_t)(number % 10000) << 32;
    uint64_t first = parts * 5243 >> 19 & 0x0000007F0000007Fu; /* hundreds of parts below 10,000 */

    parts = first | (parts - first * 100) << 16;
    first = parts * 103 >> 10 & 0x000F000F000F000Fu; /* tens of parts below 100 */
    parts = first | (parts - first * 10) << 8;
    return parts | 0x3030303030303030u;
}

static inline void ts_digits_store(uint8_t *at8, uint64_t word)
{
    ts_put_u64(at8, __builtin_bswap64(word));
}

/* Return whether the number has 13 digits. */
static inline int ts_digits_is_time(int64_t number)
{
    return number >= 1000000000000 && number < 10000000000000;
}

/* Write a number of 13 digits. */
static inline void ts_digits_time_put(uint8_t *at13, int64_t value)
{
    ts_digits_store(at13, ts_digits_of((uint32_t)(value / 100000)));
    ts_digits_store(at13 + 5, ts_digits_of((uint32_t)(value % 100000000))); /* 3 digits twice */
}

/* Read 13 digits. Return 1 and their value, or 0. Reads no other byte. */
static inline int ts_digits_time_get(const uint8_t *at13, int64_t *value)
{
    uint64_t first = ts_digits_load(at13), last = ts_digits_load(at13 + 5);

    if (!ts_digits_are(first) || !ts_digits_are(last))
        return 0;
    /* The last three of the first eight digits are the first three of the last eight. */
    *value = (int64_t)(ts_digits_value(first) / 1000 * 100000000u + ts_digits_value(last));
    return 1;
}

#endif
