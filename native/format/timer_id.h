/* Timer id as property text: the value of TS_ID, a key of timerstore's own.
 *
 *  0          4           12 bytes          as text: 16 characters, 6 bits each
 *  | store id | timer id  |      ------->   AAAAAQAAAAAAAAAH
 *
 * | offset | bytes | type | unit | meaning                                                      |
 * |--------|-------|------|------|--------------------------------------------------------------|
 * | 0      | 4     | u32  | -    | the store that gave the id                                   |
 * | 4      | 8     | u64  | -    | the id: queue offset of the timer's first record             |
 *
 * Byte order: big-endian; then base64 with - and _ (URL-safe), without padding, as 12 is a
 * multiple of 3.
 *
 * Valid if and only if: all 16 characters are of that alphabet.
 *
 * Versions: timerstore 0.1.
 */
#ifndef TS_FORMAT_TIMER_ID_H
#define TS_FORMAT_TIMER_ID_H

#include "bytes.h"

#define TS_TIMER_ID_BYTES 12
#define TS_TIMER_ID_TEXT_BYTES 16

_Static_assert(TS_TIMER_ID_BYTES / 3 * 4 == TS_TIMER_ID_TEXT_BYTES, "base64 without padding");

static inline void ts_timer_id_put(uint8_t *at16, uint32_t store_id, uint64_t id)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint64_t high = (uint64_t)store_id << 16 | id >> 48; /* 48 of the 96 bits a half */
    uint64_t low = id & 0xFFFFFFFFFFFFu;

    for (int i = 0; i < 8; i++) {
        at16[i] = (uint8_t)alphabet[high >> (42 - 6 * i) & 63];
        at16[i + 8] = (uint8_t)alphabet[low >> (42 - 6 * i) & 63];
    }
}

/* Six bits of a character, or 64 where it is not of the alphabet. */
static inline uint64_t ts_timer_id_digit(uint8_t c)
{
    if (c >= 'A' && c <= 'Z')
        return (uint64_t)(c - 'A');
    if (c >= 'a' && c <= 'z')
        return (uint64_t)(c - 'a' + 26);
    if (c >= '0' && c <= '9')
        return (uint64_t)(c - '0' + 52);
    return c == '-' ? 62 : c == '_' ? 63 : 64;
}

/* 0, or -1 where the 16 characters are no timer id. */
static inline int ts_timer_id_get(const uint8_t *at16, uint32_t *store_id, uint64_t *id)
{
    uint64_t high = 0, low = 0, seen = 0;

    for (int i = 0; i < 8; i++) {
        uint64_t a = ts_timer_id_digit(at16[i]), b = ts_timer_id_digit(at16[i + 8]);

        seen |= a | b;
        high = high << 6 | (a & 63);
        low = low << 6 | (b & 63);
    }
    if (seen & 64)
        return -1;
    *store_id = (uint32_t)(high >> 16);
    *id = (high & 0xFFFFu) << 48 | low;
    return 0;
}

#endif
