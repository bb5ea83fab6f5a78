/* Filled mark of a half of the file `timerstore/staging`. The header of that file has one for each
 * half (timerstore/_engine/log/staging.py).
 *
 *  0        4       8 bytes
 *  | filled | crc   |
 *
 * | offset | bytes | type | unit  | meaning                                              |
 * |--------|-------|------|-------|------------------------------------------------------|
 * | 0      | 4     | u32  | bytes | complete records at the begin of the half; the top   |
 * |        |       |      |       | bit is TS_MARK_HAS_CRC                               |
 * | 4      | 4     | u32  | -     | CRC-32 of these bytes; 0 without TS_MARK_HAS_CRC     |
 *
 * Byte order: little-endian; one word, so that a kill cannot separate its fields.
 *
 * Valid if and only if: `filled` is at most the size of a half. After a power cut a sector of the
 * half may be missing or older than the mark. Without TS_MARK_HAS_CRC every record ends with a CRC
 * pair (properties.h), and the leading records with a right pair count; a last blank counts with
 * the right position. With TS_MARK_HAS_CRC the half counts as a whole, if it has this CRC.
 *
 * Versions: timerstore 0.1.
 */
#ifndef TS_FORMAT_STAGING_MARK_H
#define TS_FORMAT_STAGING_MARK_H

#include <stdint.h>

#define TS_MARK_HAS_CRC 0x80000000u

static inline uint64_t ts_mark_with_crc(int64_t filled, uint32_t crc)
{
    return (uint64_t)crc << 32 | TS_MARK_HAS_CRC | (uint32_t)filled;
}

static inline int64_t ts_mark_filled(uint64_t mark)
{
    return (int64_t)(mark & (TS_MARK_HAS_CRC - 1));
}

static inline int32_t ts_mark_has_crc(uint64_t mark)
{
    return (mark & TS_MARK_HAS_CRC) != 0;
}

static inline uint32_t ts_mark_crc(uint64_t mark)
{
    return (uint32_t)(mark >> 32);
}

#endif
