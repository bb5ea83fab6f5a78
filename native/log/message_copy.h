/* Handing a message over: the copy that a record of the real topic is of its source, and its place. */
#ifndef TS_MESSAGE_COPY_H
#define TS_MESSAGE_COPY_H

#include "log/encode.h"

/* Writes the copy's properties without its CRC; their size. slim: the source leaves no space for all
 * that is added, so what can be left out is. */
typedef int32_t ts_copy_properties(uint8_t *out, const ts_record *source, int32_t slim, void *job);

/* The whole record but for what only its place can tell. 0 where it fits no format limit. */
int32_t ts_copy_encode(uint8_t *out, const ts_record *source, const ts_route *route,
                       int32_t property_crc, ts_copy_properties *properties, void *job);

/* What only the place can tell, for the record that lies at the log's end: it is in the log, but for
 * its CRC. Its log offset. The caller has seen that there is room. */
static inline int64_t ts_copy_place(ts_log *log, ts_route *route, int32_t size, int64_t now_ms)
{
    uint8_t *out = log->staging + log->filled;
    int64_t log_offset = log->base + log->filled;

    ts_put_i64(out + TS_RECORD_AT_QUEUE_OFFSET, route->next_offset++);
    ts_put_i64(out + TS_RECORD_AT_LOG_OFFSET, log_offset);
    ts_put_i64(out + TS_RECORD_AT_BORN_HOST +
                   (ts_get_i32(out + TS_RECORD_AT_SYS_FLAG) & TS_SYS_BORN_HOST_IPV6 ? 20 : 8),
               now_ms);
    log->filled += size;
    log->last_store_ms = now_ms;
    return log_offset;
}

/* Whether a copy that ts_copy_encode made ends with the pair for its CRC. */
static inline int32_t ts_copy_has_crc(const uint8_t *copy, int32_t size)
{
    return ts_property_crc_get(copy + size - TS_PROPERTY_CRC_BYTES, &(uint32_t){0});
}

#endif
