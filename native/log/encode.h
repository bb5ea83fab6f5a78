/* Encoding of records: the head, the tail, and the properties that the engine adds. */
#ifndef TS_ENCODE_H
#define TS_ENCODE_H

#include "base/checksum.h"
#include "format/bytes.h"
#include "format/properties.h"
#include "format/record.h"
#include "format/staging_mark.h"
#include "timerstore.h"

static inline uint8_t *ts_copy(uint8_t *out, const void *from, int32_t size)
{
    if (size > 0)
        memcpy(out, from, (size_t)size);
    return out + size;
}

#define TS_COPY_TEXT(out, literal) ts_copy((out), (literal), (int32_t)sizeof(literal) - 1)

/* name, 0x01, decimal number, 0x02 */
static inline uint8_t *ts_copy_number(uint8_t *out, const char *name, int32_t name_size,
                                      int64_t number)
{
    out = ts_copy(out, name, name_size);
    *out++ = 1;
    out += ts_decimal_put_i64(out, number);
    *out++ = 2;
    return out;
}

#define TS_COPY_NUMBER(out, literal, number) \
    ts_copy_number((out), (literal), (int32_t)sizeof(literal) - 1, (number))

#define TS_ID_PAIR_BYTES 23 /* TS_ID 0x01 sixteen characters 0x02 */

static inline uint8_t *ts_copy_timer_id(uint8_t *out, uint32_t store_id, int64_t id)
{
    out = TS_COPY_TEXT(out, "TS_ID\001");
    ts_timer_id_put(out, store_id, (uint64_t)id);
    out[16] = 2;
    return out + 17;
}

#define TS_PLACE_PAIR_BYTES 26 /* TS_PLACE 0x01 sixteen characters 0x02 */

/* Copy the place of a record that rolled or that retention moved: this store, and the record's own
 * queue offset. */
static inline uint8_t *ts_copy_own_place(uint8_t *out, uint32_t store_id, int64_t queue_offset)
{
    out = TS_COPY_TEXT(out, "TS_PLACE\001");
    ts_timer_id_put(out, store_id, (uint64_t)queue_offset);
    out[16] = 2;
    return out + 17;
}

#define TS_GROUP_PAIR_BYTES 26 /* TS_GROUP 0x01 sixteen characters 0x02 */

static inline uint8_t *ts_copy_group(uint8_t *out, int64_t start, int32_t left)
{
    out = TS_COPY_TEXT(out, "TS_GROUP\001");
    ts_group_put(out, start, left);
    out[16] = 2;
    return out + 17;
}

/* Write all fields before the body. The sizes of the hosts follow from sys_flag. */
static inline uint8_t *ts_head_put(uint8_t *out, const ts_record *head)
{
    ts_put_i32(out + TS_RECORD_AT_SIZE, head->size);
    ts_put_i32(out + TS_RECORD_AT_MAGIC, head->magic);
    ts_put_i32(out + TS_RECORD_AT_BODY_CRC, head->body_crc);
    ts_put_i32(out + TS_RECORD_AT_QUEUE_ID, head->queue_id);
    ts_put_i32(out + TS_RECORD_AT_FLAG, head->flag);
    ts_put_i64(out + TS_RECORD_AT_QUEUE_OFFSET, head->queue_offset);
    ts_put_i64(out + TS_RECORD_AT_LOG_OFFSET, head->log_offset);
    ts_put_i32(out + TS_RECORD_AT_SYS_FLAG, head->sys_flag);
    ts_put_i64(out + TS_RECORD_AT_BORN_MS, head->born_ms);
    out = ts_copy(out + TS_RECORD_AT_BORN_HOST, head->born_host, head->born_host_size);
    ts_put_i64(out, head->store_ms);
    out = ts_copy(out + 8, head->store_host, head->store_host_size);
    ts_put_i32(out, head->reconsume_times);
    ts_put_i64(out + 4, head->prepared_offset);
    ts_put_i32(out + 12, head->body_size);
    return out + 16;
}

/* Write the topic with its size, then the size of the properties. The topic size is wider in
 * version 2. */
static inline uint8_t *ts_topic_put(uint8_t *out, const ts_record *head)
{
    if (head->magic == TS_RECORD_MAGIC_V2) {
        ts_put_i16(out, (int16_t)head->topic_size);
        out += 2;
    } else {
        *out++ = (uint8_t)head->topic_size;
    }
    out = ts_copy(out, head->topic, head->topic_size);
    ts_put_i16(out, (int16_t)head->properties_size);
    return out + 2;
}

static inline int32_t ts_record_bytes(const ts_record *head)
{
    return TS_RECORD_FIXED_BYTES + (head->magic == TS_RECORD_MAGIC_V2 ? 1 : 0) +
           (head->born_host_size - 8) + (head->store_host_size - 8) + head->body_size +
           head->topic_size + head->properties_size;
}

/* Return the magic for a topic. Version 2 is for topics of more than 127 UTF-16 units; all topics
 * here are ASCII. */
static inline int32_t ts_record_magic(int32_t topic_size)
{
    return topic_size > 127 ? TS_RECORD_MAGIC_V2 : TS_RECORD_MAGIC_V1;
}

/* Set the CRC of the body. It is computed from the record, because the caller may have changed its
 * own bytes since they were copied. */
static inline void ts_body_crc_set(uint8_t *record, int32_t body_at, int32_t body_size)
{
    uint32_t crc = ts_crc32(0, record + body_at, body_size);

    ts_put_u32(record + TS_RECORD_AT_BODY_CRC, crc & 0x7FFFFFFFu);
}

/* Set the CRC in the record's last 20 bytes from all bytes before them, which must be final. */
static inline void ts_property_crc_set(uint8_t *record, int32_t size)
{
    uint32_t crc = ts_crc32(0, record, size - TS_PROPERTY_CRC_BYTES) & 0x7FFFFFFFu;

    ts_property_crc_put(record + size - TS_PROPERTY_CRC_BYTES, crc);
}

/* Return TS_OK if a record of this size fits now; else set log->need. */
static inline int32_t ts_log_has_space(ts_log *log, int32_t size)
{
    if (log->base + log->filled + size > log->append_limit ||
        (log->filled > 0 && log->filled + size > log->staging_bytes)) {
        log->need = size;
        return TS_NEED_SPACE;
    }
    return TS_OK;
}

/* Return the mark of all appended records, with their CRC. It continues that of the mark before. */
static inline uint64_t ts_log_crc_mark(const ts_log *log)
{
    uint64_t before = *log->filled_mark;
    int64_t from = ts_mark_has_crc(before) ? ts_mark_filled(before) : 0;
    uint32_t crc = ts_crc32(ts_mark_crc(before), log->staging + from, log->filled - from);

    return ts_mark_with_crc(log->filled, crc);
}

/* Publish the appended records: recovery trusts the bytes below the mark, so the mark is set after
 * the bytes were written. No record of it is due soon. */
static inline void ts_log_publish_far(ts_log *log)
{
    uint64_t mark = log->mark_crc ? ts_log_crc_mark(log) : (uint64_t)log->filled;

    __atomic_store_n(log->filled_mark, mark, __ATOMIC_RELEASE);
}

/* Publish as above. A record of it may be due soon. */
static inline void ts_log_publish(ts_log *log)
{
    int64_t end = log->base + log->filled;

    __atomic_store_n(&log->near_end, end, __ATOMIC_RELAXED);
    __atomic_store_n(&log->soon_end, end, __ATOMIC_RELAXED);
    ts_log_publish_far(log);
}

/* Publish as above, for puts of which the first is due at soonest_ms (0: now). */
static inline void ts_log_publish_due(ts_log *log, int64_t soonest_ms, int64_t now_ms)
{
    if (soonest_ms <= now_ms + log->soon_ms) {
        ts_log_publish(log);
        return;
    }
    if (soonest_ms <= now_ms + log->near_ms)
        __atomic_store_n(&log->near_end, log->base + log->filled, __ATOMIC_RELAXED);
    ts_log_publish_far(log);
}

#endif
