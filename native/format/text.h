/* Numbers as decimal text, and Java's hash of a text.
 *
 * | what         | bytes   | meaning                                                           |
 * |--------------|---------|-------------------------------------------------------------------|
 * | decimal text | 1 to 20 | as Java prints and parses a long: sign, digits, nothing else      |
 * | hash         | i32     | h = 31 h + u over the text's UTF-16 units u, from 0, modulo 2^32  |
 *
 * Valid decimal text if and only if: an optional + or -, at least one ASCII digit, and a value that
 * fits an i64. (Java also parses digits of other scripts, but no writer makes them.)
 *
 * Versions: none; the hash is fixed by the queue units and timer units that carry it.
 */
#ifndef TS_FORMAT_TEXT_H
#define TS_FORMAT_TEXT_H

#include "format/bytes.h"
#include "format/digits.h"

#define TS_DECIMAL_BYTES_MAX 20 /* -9223372036854775808 */

/* Write a number, at most 20 bytes. Return the size. */
static inline int ts_decimal_put_i64(uint8_t *at, int64_t number)
{
    static const char pairs[] = "00010203040506070809101112131415161718192021222324"
                                "25262728293031323334353637383940414243444546474849"
                                "50515253545556575859606162636465666768697071727374"
                                "75767778798081828384858687888990919293949596979899";
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    uint8_t digits[TS_DECIMAL_BYTES_MAX];
    int at_digit = TS_DECIMAL_BYTES_MAX, size;

    if (ts_digits_is_time(number)) { /* most numbers are times */
        ts_digits_time_put(at, number);
        return TS_TIME_DIGITS;
    }
    for (; left >= 100; left /= 100) {
        at_digit -= 2;
        memcpy(digits + at_digit, pairs + left % 100 * 2, 2);
    }
    if (left >= 10) {
        at_digit -= 2;
        memcpy(digits + at_digit, pairs + left * 2, 2);
    } else {
        digits[--at_digit] = (uint8_t)('0' + left);
    }
    if (number < 0)
        digits[--at_digit] = '-';
    size = TS_DECIMAL_BYTES_MAX - at_digit;
    memcpy(at, digits + at_digit, (size_t)size);
    return size;
}

/* Parse a decimal number. Return 0, or -1 if the text is not exactly one number that fits. */
static inline int ts_decimal_get_i64(const uint8_t *at, int32_t size, int64_t *number)
{
    int32_t i = 0;
    int negative = 0;
    uint64_t limit, n = 0;

    if (size > 0 && (at[0] == '-' || at[0] == '+')) {
        negative = at[0] == '-';
        i = 1;
    }
    if (i >= size)
        return -1;
    limit = (uint64_t)INT64_MAX + (negative ? 1u : 0u);
    for (; i < size && i < 18; i++) { /* so many digits always fit */
        unsigned digit = (unsigned)at[i] - '0';

        if (digit > 9)
            return -1;
        n = n * 10 + digit;
    }
    for (; i < size; i++) {
        unsigned digit = (unsigned)at[i] - '0';

        if (digit > 9 || n > (limit - digit) / 10)
            return -1;
        n = n * 10 + digit;
    }
    *number = (int64_t)(negative ? 0 - n : n);
    return 0;
}

/* Return whether a byte may follow the first byte of a UTF-8 sequence. */
static inline int ts_utf8_follows(const uint8_t *at, int32_t i, int32_t size)
{
    return i < size && (at[i] & 0xC0) == 0x80;
}

/* Decode one code point at *i, and move *i past it. Malformed input gives U+FFFD in the way of
 * Java's decoder: one for the longest prefix of a valid sequence, and one for a whole surrogate. */
static inline uint32_t ts_utf8_next(const uint8_t *at, int32_t size, int32_t *i)
{
    const uint32_t broken = 0xFFFD;
    int32_t from = *i;
    uint32_t first = at[from], second, point;

    *i = from + 1;
    if (first < 0x80)
        return first;
    if (first < 0xC2 || first > 0xF4 || !ts_utf8_follows(at, from + 1, size))
        return broken;
    second = at[from + 1];
    if ((first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90) ||
        (first == 0xF4 && second > 0x8F))
        return broken;
    *i = from + 2;
    if (first < 0xE0)
        return (first & 0x1Fu) << 6 | (second & 0x3Fu);
    if (!ts_utf8_follows(at, from + 2, size))
        return broken;
    *i = from + 3;
    point = (first & 0x0Fu) << 12 | (second & 0x3Fu) << 6 | (at[from + 2] & 0x3Fu);
    if (first < 0xF0)
        return point >= 0xD800 && point <= 0xDFFF ? broken : point;
    if (!ts_utf8_follows(at, from + 3, size))
        return broken;
    *i = from + 4;
    return (point << 6 | (at[from + 3] & 0x3Fu)) & 0x1FFFFFu;
}

/* Return String.hashCode of the decoded text. */
static inline int32_t ts_java_hash(const uint8_t *utf8, int32_t size)
{
    uint32_t hash = 0;
    int32_t i = 0;

    while (i < size) {
        uint32_t point;

        if (size - i >= 4 && (ts_get_u32(utf8 + i) & 0x80808080u) == 0) {
            /* Four ASCII characters at once: the powers of 31 break the chain of products. */
            hash = hash * 923521u + utf8[i] * 29791u + utf8[i + 1] * 961u + utf8[i + 2] * 31u +
                   utf8[i + 3];
            i += 4;
            continue;
        }
        point = ts_utf8_next(utf8, size, &i);
        if (point >= 0x10000) {
            hash = hash * 31u + (0xD800u + ((point - 0x10000) >> 10));
            point = 0xDC00u + ((point - 0x10000) & 0x3FFu);
        }
        hash = hash * 31u + point;
    }
    return (int32_t)hash;
}

#endif
