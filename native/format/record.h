/* Commit-log record, and the blank that ends a segment.
 *
 *  0    4     8        12       16   20           28         36       40      48
 *  | size | magic | body crc | queue | flag | queue offset | log offset | sys flag | born ms | ...
 *
 *  48          56         64           72          76         84     88
 *  | born host | store ms | store host | reconsumed | prepared | body n | body | t | topic | ...
 *
 *  ... | p | properties |                                   (next record follows, unaligned)
 *
 * | offset   | bytes  | type      | unit    | meaning                                           |
 * |----------|--------|-----------|---------|---------------------------------------------------|
 * | 0        | 4      | i32       | bytes   | whole record, this field included                 |
 * | 4        | 4      | i32       | -       | magic: version 1 or 2                             |
 * | 8        | 4      | i32       | -       | CRC-32 of the stored body, top bit off; 0 if empty |
 * | 12       | 4      | i32       | -       | queue number                                      |
 * | 16       | 4      | i32       | -       | flag of the application, opaque                   |
 * | 20       | 8      | i64       | units   | queue offset; 0 if the record enters no queue     |
 * | 28       | 8      | i64       | bytes   | log offset of this record itself                  |
 * | 36       | 4      | i32       | bits    | TS_SYS_*                                          |
 * | 40       | 8      | i64       | ms      | creation time by the producer's clock             |
 * | 48       | 8, 20  | ip, i32   | -       | born host: address and port                       |
 * | 56       | 8      | i64       | ms      | store time                                        |
 * | 64       | 8, 20  | ip, i32   | -       | store host                                        |
 * | 72       | 4      | i32       | -       | how often consumers returned it                   |
 * | 76       | 8      | i64       | bytes   | log offset of a transaction's half message, or 0  |
 * | 84       | 4      | i32       | bytes   | body size n, 0 allowed                            |
 * | 88       | n      | bytes     | -       | body, as the producer compressed it               |
 * | 88+n     | 1, 2   | i8, i16   | bytes   | topic size t: one byte in version 1, two in 2     |
 * | then     | t      | UTF-8     | -       | topic                                             |
 * | then     | 2      | i16       | bytes   | properties size p                                 |
 * | then     | p      | text      | -       | properties (properties.h)                         |
 *
 * Byte order: big-endian, two's complement. The offsets are for IPv4 hosts. Each IPv6 host (bits
 * TS_SYS_BORN_HOST_IPV6, TS_SYS_STORE_HOST_IPV6) moves the fields after it by 12.
 *
 * Valid if and only if: the magic is one of the two; the record lies within the available bytes; no
 * length is negative; the topic has at most 255 bytes, the limit of a folder's name; the queue
 * offset is 0 to 2^58, so that its unit has a valid file offset; and size = 91 (92 in version 2) +
 * 12 per IPv6 host + n + t + p. Two further checks need more than this header: the log offset is
 * the record's position; and the CRC of the properties matches, or that of the body if the
 * properties end without a CRC. A size of 0 is the end of the log.
 *
 * Blank: the rest of a segment that the next record did not fit. It has at least 8 bytes.
 *
 * | 0        | 4      | i32       | bytes   | rest of the segment, this field included          |
 * | 4        | 4      | i32       | -       | TS_BLANK_MAGIC                                    |
 * | 8        | 8      | i64       | bytes   | log offset of this blank: timerstore only         |
 *
 * The last field is an extension, present if 16 bytes were left. A broker neither writes nor reads
 * these bytes. The field distinguishes a current blank from a stale one.
 *
 * Versions: 1 in every release; 2 since 5.0 of the broker, for topics of more than 127 UTF-16
 * units. Properties CRC since 5.2. Blank with position: timerstore 0.1.
 */
#ifndef TS_FORMAT_RECORD_H
#define TS_FORMAT_RECORD_H

#include "format/bytes.h"

#define TS_RECORD_MAGIC_V1 ((int32_t)(-626843481)) /* 0xDAA320A7 */
#define TS_RECORD_MAGIC_V2 ((int32_t)(-626843477)) /* 0xDAA320AB */
#define TS_BLANK_MAGIC ((int32_t)(-875286124))     /* 0xCBD43194 */

#define TS_RECORD_FIXED_BYTES 91 /* version 1 and IPv4: without body, topic and properties */
#define TS_HOST_IPV4_BYTES 8
#define TS_HOST_IPV6_BYTES 20

#define TS_RECORD_AT_SIZE 0
#define TS_RECORD_AT_MAGIC 4
#define TS_RECORD_AT_BODY_CRC 8
#define TS_RECORD_AT_QUEUE_ID 12
#define TS_RECORD_AT_FLAG 16
#define TS_RECORD_AT_QUEUE_OFFSET 20
#define TS_RECORD_AT_LOG_OFFSET 28
#define TS_RECORD_AT_SYS_FLAG 36
#define TS_RECORD_AT_BORN_MS 40
#define TS_RECORD_AT_BORN_HOST 48
/* The following offsets hold only if both hosts are IPv4. */
#define TS_RECORD_AT_STORE_MS 56
#define TS_RECORD_AT_STORE_HOST 64
#define TS_RECORD_AT_RECONSUME 72
#define TS_RECORD_AT_PREPARED 76
#define TS_RECORD_AT_BODY_SIZE 84
#define TS_RECORD_AT_BODY 88

#define TS_TOPIC_BYTES_MAX 255
#define TS_TOPIC_BYTES_V1_MAX 127
#define TS_QUEUE_OFFSET_MAX ((int64_t)1 << 58)

#define TS_SYS_COMPRESSED 0x01
#define TS_SYS_MULTI_TAGS 0x02
#define TS_SYS_TRANSACTION 0x0C
#define TS_SYS_TRANSACTION_NONE 0x00
#define TS_SYS_TRANSACTION_PREPARED 0x04
#define TS_SYS_TRANSACTION_COMMIT 0x08
#define TS_SYS_TRANSACTION_ROLLBACK 0x0C
#define TS_SYS_BORN_HOST_IPV6 0x10
#define TS_SYS_STORE_HOST_IPV6 0x20
#define TS_SYS_NEED_UNWRAP 0x40
#define TS_SYS_INNER_BATCH 0x80
#define TS_SYS_COMPRESSION 0x700 /* these three bits: 0 and 3 zlib, 1 LZ4, 2 zstd */
#define TS_SYS_COMPRESSION_SHIFT 8

#define TS_BLANK_BYTES 16    /* as timerstore writes it, if so many bytes are left */
#define TS_BLANK_BYTES_MIN 8 /* as a broker writes it */

_Static_assert(TS_RECORD_AT_BODY + 1 + 2 == TS_RECORD_FIXED_BYTES, "fixed part of a record");
_Static_assert(TS_RECORD_AT_BODY == TS_RECORD_AT_BODY_SIZE + 4, "body follows its size");
_Static_assert(TS_RECORD_MAGIC_V1 == (int32_t)0xDAA320A7u, "magic of version 1");
_Static_assert(TS_RECORD_MAGIC_V2 == (int32_t)0xDAA320ABu, "magic of version 2");
_Static_assert(TS_BLANK_MAGIC == (int32_t)0xCBD43194u, "magic of a blank");

/* Why bytes are not a record. */
enum ts_record_fault {
    TS_RECORD_ENDS = -1,    /* the size is 0: nothing was written here */
    TS_RECORD_SHORT = -2,   /* the record reaches past the available bytes */
    TS_RECORD_MAGIC = -3,   /* neither version; a blank has another magic, too */
    TS_RECORD_LENGTHS = -4  /* the lengths do not add up to the size */
};

/* A decoded record: numbers are copied, texts point into the bytes at base. */
typedef struct {
    const uint8_t *base;
    int32_t size;
    int32_t magic;
    int32_t body_crc;
    int32_t queue_id;
    int32_t flag;
    int64_t queue_offset;
    int64_t log_offset;
    int32_t sys_flag;
    int64_t born_ms;
    const uint8_t *born_host;
    int32_t born_host_size; /* 8 or 20 */
    int64_t store_ms;
    const uint8_t *store_host;
    int32_t store_host_size; /* 8 or 20 */
    int32_t reconsume_times;
    int64_t prepared_offset;
    const uint8_t *body;
    int32_t body_size;
    const uint8_t *topic;
    int32_t topic_size;
    const uint8_t *properties;
    int32_t properties_size;
} ts_record;

/* Return the size without body, topic and properties, for a magic and a sys flag. */
static inline int32_t ts_record_fixed_bytes(int32_t magic, int32_t sys_flag)
{
    return TS_RECORD_FIXED_BYTES + (magic == TS_RECORD_MAGIC_V2) +
           ((sys_flag & TS_SYS_BORN_HOST_IPV6) != 0 ? 12 : 0) +
           ((sys_flag & TS_SYS_STORE_HOST_IPV6) != 0 ? 12 : 0);
}

/* Decode the record at `at`, of which `available` bytes may be read. Return 0, or an enum
 * ts_record_fault; then *out is undefined. Every length is checked before it is used. The caller
 * checks the CRCs and the position. */
static inline int ts_record_get(const uint8_t *at, int64_t available, ts_record *out)
{
    const uint8_t *next;
    int32_t rest;

    if (available < 4)
        return TS_RECORD_SHORT;
    out->base = at;
    out->size = ts_get_i32(at + TS_RECORD_AT_SIZE);
    if (out->size == 0)
        return TS_RECORD_ENDS;
    if (available < 8)
        return TS_RECORD_SHORT;
    out->magic = ts_get_i32(at + TS_RECORD_AT_MAGIC);
    if (out->magic != TS_RECORD_MAGIC_V1 && out->magic != TS_RECORD_MAGIC_V2)
        return TS_RECORD_MAGIC;
    if (out->size < TS_RECORD_FIXED_BYTES)
        return TS_RECORD_LENGTHS;
    if (out->size > available)
        return TS_RECORD_SHORT;
    out->body_crc = ts_get_i32(at + TS_RECORD_AT_BODY_CRC);
    out->queue_id = ts_get_i32(at + TS_RECORD_AT_QUEUE_ID);
    out->flag = ts_get_i32(at + TS_RECORD_AT_FLAG);
    out->queue_offset = ts_get_i64(at + TS_RECORD_AT_QUEUE_OFFSET);
    if (out->queue_offset < 0 || out->queue_offset > TS_QUEUE_OFFSET_MAX)
        return TS_RECORD_LENGTHS;
    out->log_offset = ts_get_i64(at + TS_RECORD_AT_LOG_OFFSET);
    out->sys_flag = ts_get_i32(at + TS_RECORD_AT_SYS_FLAG);
    out->born_ms = ts_get_i64(at + TS_RECORD_AT_BORN_MS);
    rest = out->size - ts_record_fixed_bytes(out->magic, out->sys_flag);
    if (rest < 0)
        return TS_RECORD_LENGTHS;
    out->born_host = at + TS_RECORD_AT_BORN_HOST;
    out->born_host_size = (out->sys_flag & TS_SYS_BORN_HOST_IPV6) != 0 ? TS_HOST_IPV6_BYTES
                                                                       : TS_HOST_IPV4_BYTES;
    next = out->born_host + out->born_host_size;
    out->store_ms = ts_get_i64(next);
    out->store_host = next + 8;
    out->store_host_size = (out->sys_flag & TS_SYS_STORE_HOST_IPV6) != 0 ? TS_HOST_IPV6_BYTES
                                                                         : TS_HOST_IPV4_BYTES;
    next = out->store_host + out->store_host_size;
    out->reconsume_times = ts_get_i32(next);
    out->prepared_offset = ts_get_i64(next + 4);
    out->body_size = ts_get_i32(next + 12);
    if (out->body_size < 0 || out->body_size > rest)
        return TS_RECORD_LENGTHS;
    rest -= out->body_size;
    out->body = next + 16;
    next = out->body + out->body_size;
    if (out->magic == TS_RECORD_MAGIC_V2) {
        out->topic_size = ts_get_i16(next);
        next += 2;
    } else {
        out->topic_size = ts_get_i8(next);
        next += 1;
    }
    if (out->topic_size < 0 || out->topic_size > TS_TOPIC_BYTES_MAX || out->topic_size > rest)
        return TS_RECORD_LENGTHS;
    rest -= out->topic_size;
    out->topic = next;
    next += out->topic_size;
    out->properties_size = ts_get_i16(next);
    out->properties = next + 2;
    return out->properties_size == rest ? 0 : TS_RECORD_LENGTHS;
}

/* Write a whole record from all fields except base and size. Return its size, for which `at` has
 * space. The caller has checked the limits: topic 127 bytes in version 1, properties 32767. */
static inline int32_t ts_record_put(uint8_t *at, const ts_record *record)
{
    int32_t size = ts_record_fixed_bytes(record->magic, record->sys_flag) + record->body_size +
                   record->topic_size + record->properties_size;
    uint8_t *next = at + TS_RECORD_AT_BORN_HOST;

    ts_put_i32(at + TS_RECORD_AT_SIZE, size);
    ts_put_i32(at + TS_RECORD_AT_MAGIC, record->magic);
    ts_put_i32(at + TS_RECORD_AT_BODY_CRC, record->body_crc);
    ts_put_i32(at + TS_RECORD_AT_QUEUE_ID, record->queue_id);
    ts_put_i32(at + TS_RECORD_AT_FLAG, record->flag);
    ts_put_i64(at + TS_RECORD_AT_QUEUE_OFFSET, record->queue_offset);
    ts_put_i64(at + TS_RECORD_AT_LOG_OFFSET, record->log_offset);
    ts_put_i32(at + TS_RECORD_AT_SYS_FLAG, record->sys_flag);
    ts_put_i64(at + TS_RECORD_AT_BORN_MS, record->born_ms);
    memcpy(next, record->born_host, (size_t)record->born_host_size);
    next += record->born_host_size;
    ts_put_i64(next, record->store_ms);
    memcpy(next + 8, record->store_host, (size_t)record->store_host_size);
    next += 8 + record->store_host_size;
    ts_put_i32(next, record->reconsume_times);
    ts_put_i64(next + 4, record->prepared_offset);
    ts_put_i32(next + 12, record->body_size);
    next += 16;
    if (record->body_size > 0) /* an empty body may have a NULL address */
        memcpy(next, record->body, (size_t)record->body_size);
    next += record->body_size;
    if (record->magic == TS_RECORD_MAGIC_V2) {
        ts_put_i16(next, (int16_t)record->topic_size);
        next += 2;
    } else {
        ts_put_u8(next, (uint8_t)record->topic_size);
        next += 1;
    }
    if (record->topic_size > 0)
        memcpy(next, record->topic, (size_t)record->topic_size);
    next += record->topic_size;
    ts_put_i16(next, (int16_t)record->properties_size);
    if (record->properties_size > 0)
        memcpy(next + 2, record->properties, (size_t)record->properties_size);
    return size;
}

/* Write a blank over the segment's `remaining` bytes, at least 8. Writes 16 bytes, or 8 if fewer
 * than 16 are left. */
static inline void ts_blank_put(uint8_t *at, int32_t remaining, int64_t own_position)
{
    ts_put_i32(at, remaining);
    ts_put_i32(at + 4, TS_BLANK_MAGIC);
    if (remaining >= TS_BLANK_BYTES)
        ts_put_i64(at + 8, own_position);
}

/* Return whether a blank is at `at`, and how many bytes it spans: 8 or more, without an upper
 * limit. */
static inline int ts_blank_is(const uint8_t *at, int64_t available, int32_t *remaining)
{
    if (available < TS_BLANK_BYTES_MIN || ts_get_i32(at + 4) != TS_BLANK_MAGIC)
        return 0;
    *remaining = ts_get_i32(at);
    return *remaining >= TS_BLANK_BYTES_MIN;
}

/* Read the position in a blank. Return 1 if the blank is long enough to have one. A broker's blank
 * may have any value there. */
static inline int ts_blank_position_get(const uint8_t *at, int64_t available, int64_t *position)
{
    int32_t remaining;

    if (available < TS_BLANK_BYTES || !ts_blank_is(at, available, &remaining) ||
        remaining < TS_BLANK_BYTES)
        return 0;
    *position = ts_get_i64(at + 8);
    return 1;
}

#endif
