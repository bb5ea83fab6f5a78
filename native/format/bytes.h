/* Big-endian load and store at any address. All code that accesses bytes of files uses these
 * functions.
 *
 * memcpy makes unaligned access well defined; a compiler turns it into one load and one byte swap.
 * The caller has checked the address: these functions do not know a size.
 */
#ifndef TS_FORMAT_BYTES_H
#define TS_FORMAT_BYTES_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define TS_BIG_16(n) __builtin_bswap16(n)
#define TS_BIG_32(n) __builtin_bswap32(n)
#define TS_BIG_64(n) __builtin_bswap64(n)
#else
#define TS_BIG_16(n) (n)
#define TS_BIG_32(n) (n)
#define TS_BIG_64(n) (n)
#endif

static inline uint8_t ts_get_u8(const uint8_t *at)
{
    return *at;
}

static inline int8_t ts_get_i8(const uint8_t *at)
{
    return (int8_t)*at;
}

static inline uint16_t ts_get_u16(const uint8_t *at)
{
    uint16_t n;

    memcpy(&n, at, sizeof n);
    return TS_BIG_16(n);
}

static inline int16_t ts_get_i16(const uint8_t *at)
{
    return (int16_t)ts_get_u16(at);
}

static inline uint32_t ts_get_u32(const uint8_t *at)
{
    uint32_t n;

    memcpy(&n, at, sizeof n);
    return TS_BIG_32(n);
}

static inline int32_t ts_get_i32(const uint8_t *at)
{
    return (int32_t)ts_get_u32(at);
}

static inline uint64_t ts_get_u64(const uint8_t *at)
{
    uint64_t n;

    memcpy(&n, at, sizeof n);
    return TS_BIG_64(n);
}

static inline int64_t ts_get_i64(const uint8_t *at)
{
    return (int64_t)ts_get_u64(at);
}

static inline void ts_put_u8(uint8_t *at, uint8_t v)
{
    *at = v;
}

static inline void ts_put_u16(uint8_t *at, uint16_t v)
{
    uint16_t n = TS_BIG_16(v);

    memcpy(at, &n, sizeof n);
}

static inline void ts_put_i16(uint8_t *at, int16_t v)
{
    ts_put_u16(at, (uint16_t)v);
}

static inline void ts_put_u32(uint8_t *at, uint32_t v)
{
    uint32_t n = TS_BIG_32(v);

    memcpy(at, &n, sizeof n);
}

static inline void ts_put_i32(uint8_t *at, int32_t v)
{
    ts_put_u32(at, (uint32_t)v);
}

static inline void ts_put_u64(uint8_t *at, uint64_t v)
{
    uint64_t n = TS_BIG_64(v);

    memcpy(at, &n, sizeof n);
}

static inline void ts_put_i64(uint8_t *at, int64_t v)
{
    ts_put_u64(at, (uint64_t)v);
}

#endif
