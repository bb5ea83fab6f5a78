/* Copies of messages: the record of the real topic that delivery makes of a source, and its place
 * in the log. */
#ifndef TS_MESSAGE_COPY_H
#define TS_MESSAGE_COPY_H

#include "log/encode.h"

/* Write the copy's properties without the CRC. Return their size. slim: the source leaves too
 * little space for all that delivery adds, so leave out optional fields. */
typedef int32_t ts_copy_properties(uint8_t *out, const ts_record *source, int32_t slim, void *job);

/* Encode the record, except the fields that depend on its place. Return 0 if it exceeds a limit of
 * the format. */
int32_t ts_copy_encode(uint8_t *out, const ts_record *source, const ts_route *route,
                       int32_t property_crc, ts_copy_properties *properties, void *job);

/* Fill in the fields that depend on the place of the record at the log's end, and append it,
 * without its CRC. Return its log offset. The caller has checked that there is space. */
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

/* Return whether a copy made by ts_copy_encode ends with a CRC pair. */
static inline int32_t ts_copy_has_crc(const uint8_t *copy, int32_t size)
{
    return ts_property_crc_get(copy + size - TS_PROPERTY_CRC_BYTES, &(uint32_t){0});
}

/* Set the CRC of a placed copy. A copy without space for one needs the filled mark's CRC. */
static inline void ts_copy_close(ts_log *log, int64_t placed, int32_t size, int32_t has_crc)
{
    if (has_crc)
        ts_property_crc_set(log->staging + (placed - log->base), size);
    else
        log->mark_crc = 1;
}

#endif
