/* Reading messages: pulls and tag filters. */

/* One message of a pull. Bodies and properties go to buffers of the caller. */
typedef struct {
    int64_t queue_offset;
    int64_t log_offset;
    int64_t born_ms;
    int64_t store_ms;
    int64_t due_ms;
    int64_t delivered_ms;
    int64_t body_at;
    int64_t properties_at;
    int32_t body_size;
    int32_t properties_size;
    int32_t size;
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag;
    int32_t reconsume_times;
    int32_t body_crc;
    uint8_t born_host[20];
    uint8_t store_host[20];
    int32_t born_host_size;
    int32_t store_host_size;
} ts_pulled;

/* A tag filter. Tag k is texts[text_offsets[k] .. text_offsets[k + 1]). */
typedef struct {
    const int32_t *hashes;       /* ascending */
    const uint8_t *texts;        /* in the order of their hashes */
    const int64_t *text_offsets; /* [count + 1] */
    int32_t count;
} ts_tags;

/* read/pull.c */

/* Read the messages of queue units. positions: which units from queue_offset on, ascending; NULL:
 * the first `count`. Return how many were read. */
int32_t ts_pull(ts_view *view, const ts_route *route, const uint8_t *units,
                const int32_t *positions, int32_t count, int64_t queue_offset,
                int64_t visible_end, int64_t precision_ms, ts_pulled *out,
                uint8_t *bodies, int64_t bodies_bytes, uint8_t *properties,
                int64_t properties_bytes);
/* Return the size of the records of some units, as the units give it. positions: as above. */
int64_t ts_units_bytes(const uint8_t *units, const int32_t *positions, int64_t count);
/* Return how many units, from the first on, point below log_end. */
int64_t ts_units_below(const uint8_t *units, int64_t count, int64_t log_end);
/* Read the message at a log offset. Return TS_NEED_SPACE with view->need if a buffer is too small.
 */
int32_t ts_pull_one(ts_view *view, int64_t log_offset, int64_t precision_ms, ts_pulled *out,
                    uint8_t *body, int64_t body_bytes, uint8_t *properties,
                    int64_t properties_bytes, uint8_t *topic);

/* read/tag_filter.c: pure. Each function returns how many messages pass. */

/* Select the units whose tags code may match. Not for the level topic, whose tags code is a due
 * time. */
int32_t ts_units_tagged(const uint8_t *units, int32_t count, const ts_tags *tags,
                        int32_t *positions);
/* Set keep[k] to 1 if text k is one of the tags, else to 0. */
int32_t ts_texts_tagged(const uint8_t *texts, const int64_t *offsets, int32_t count,
                        const ts_tags *tags, uint8_t *keep);
/* Remove the messages whose keep is 0, and close the gaps. */
int32_t ts_pulled_keep(ts_pulled *pulled, int32_t count, const uint8_t *keep, uint8_t *bodies,
                       uint8_t *properties);
