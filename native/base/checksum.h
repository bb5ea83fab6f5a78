/* CRC-32 (IEEE 802.3) of the file formats, as zlib computes it. */
#ifndef TS_CHECKSUM_H
#define TS_CHECKSUM_H

#include <stdint.h>

/* Return the CRC of the data, continued from `crc`: 0, or the CRC of the preceding bytes. A size of
 * 0 or less returns `crc`. Pure; any thread may call it. */
uint32_t ts_crc32(uint32_t crc, const uint8_t *data, int64_t size);

#endif
