/* CRC-32 of the format (IEEE 802.3), as zlib counts it. */
#ifndef TS_CHECKSUM_H
#define TS_CHECKSUM_H

#include <stdint.h>

/* crc: 0, or what the bytes before gave. size 0 or less gives crc back. Pure; any thread. */
uint32_t ts_crc32(uint32_t crc, const uint8_t *data, int64_t size);

#endif
