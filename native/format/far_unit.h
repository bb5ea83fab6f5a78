/* Far unit: a message due after the roll window, until it gets its slot on the wheel. This format
 * is timerstore's own; no broker reads it.
 *
 *  0          8    16           24       32     40     44           48    52
 *  | previous | id | log offset | due ms | slot | size | topic hash | CRC |
 *
 * | offset | bytes | type | unit  | meaning                                                    |
 * |--------|-------|------|-------|------------------------------------------------------------|
 * | 0      | 8     | i64  | units | number of the slot's previous unit; -1: none               |
 * | 8      | 8     | i64  | -     | timer id                                                   |
 * | 16     | 8     | i64  | bytes | log offset of the message in the timer topic               |
 * | 24     | 8     | i64  | ms    | due time                                                   |
 * | 32     | 8     | i64  | -     | far slot; its width in wheel slots is in far_table.py      |
 * | 40     | 4     | i32  | bytes | size of that message                                       |
 * | 44     | 4     | i32  | -     | Java's hash of the real topic; 0 without one               |
 * | 48     | 4     | u32  | -     | CRC-32 of the unit's number as i64, then of bytes 0 - 47   |
 *
 * Byte order: big-endian. Units are numbered from 0 for the lifetime of the store. A file holds
 * whole units, and the rest at its end is unused: number n is in file n / (file bytes / 52), at
 * offset 52 * (n mod (file bytes / 52)).
 *
 * Valid if and only if: the CRC matches, size > 0, and previous is -1 or lower than the number.
 *
 * Three units of two slots. Slot 4 points to C, which points to A; slot 9 points to B:
 *   0  A  previous -1, slot 4      1  B  previous -1, slot 9      2  C  previous 0, slot 4
 *
 * Versions: timerstore 0.3.
 */
#ifndef TS_FORMAT_FAR_UNIT_H
#define TS_FORMAT_FAR_UNIT_H

#include "format/bytes.h"

#define TS_FAR_UNIT_BYTES 52

#define TS_FAR_AT_PREVIOUS 0
#define TS_FAR_AT_ID 8
#define TS_FAR_AT_LOG_OFFSET 16
#define TS_FAR_AT_DUE_MS 24
#define TS_FAR_AT_SLOT 32
#define TS_FAR_AT_SIZE 40
#define TS_FAR_AT_TOPIC_HASH 44
#define TS_FAR_AT_CRC 48

_Static_assert(TS_FAR_AT_CRC + 4 == TS_FAR_UNIT_BYTES, "size of a far unit");

#endif
