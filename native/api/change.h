/* Cancelling and rescheduling pending messages. */

/* The message that a handle names. Topic and key are adjacent in a buffer of names. log_offset is
 * the known place of the message with the hinted timer id; it is checked, not trusted. */
typedef struct {
    int64_t timer_id;
    int64_t out_ms;
    int64_t log_offset; /* -1: not known */
    int64_t name_at;
    int32_t size;       /* 0: not known */
    int32_t topic_size;
    int32_t key_size;
    int32_t unused;
} ts_handle;

/* One of many cancels. */
typedef struct {
    ts_route *real;     /* NULL: the hint was not conclusive, and nothing was changed */
    int64_t timer_id;
    int64_t due_ms;
    int64_t log_offset; /* out: of the delete record, if the message waited */
    int64_t text_at;    /* of the delete record's properties */
    int32_t text_size;
    int32_t state;      /* out: enum ts_state before the call */
} ts_cancel_draft;

/* Bytes of a delete record's properties besides its topic and key, each of which it has twice. */
enum { TS_DELETE_TEXT_BYTES = 192 };

/* timer/cancels.c */

/* Write a delete record's properties as a broker does, without timerstore's own. Return their size,
 * or TS_NEED_SPACE. */
int32_t ts_delete_text(uint8_t *out, int32_t out_bytes, const uint8_t *topic, int32_t topic_size,
                       const uint8_t *key, int32_t key_size, int32_t queue_id, int64_t out_ms);
/* Look up the messages of handles, and write one draft for each. Return how many were looked up
 * before the space for texts ran out. Needs no lock. */
int32_t ts_cancels_find(ts_view *view, const ts_routes *routes, int64_t precision_ms,
                        const ts_handle *named, const uint8_t *names, int32_t count,
                        uint8_t *texts, int32_t texts_bytes, ts_cancel_draft *drafts);
/* Cancel the drafts [from, count). Return how many are done. Needs the append lock. */
int32_t ts_cancels_place(ts_log *log, const uint8_t *texts, ts_cancel_draft *drafts, int32_t from,
                         int32_t count, int64_t now_ms);

/* log/append.c: both under the append lock. Return the id's state (enum ts_state) before the call.
 * log->out[1] is the log's end, which lies past the record that decided that state. */

/* Cancel a message: append its delete record if it waits. */
int32_t ts_cancel(ts_log *log, ts_route *real, int64_t id, const uint8_t *properties,
                  int32_t properties_size, int64_t now_ms);
/* Cancel a message and append another in its place, as a group of two. `record` was written by
 * ts_reschedule_encode or ts_replace_encode for `target`: the timer route, or real if it is due. */
int32_t ts_reschedule(ts_log *log, ts_route *real, int64_t id, const uint8_t *properties,
                      int32_t properties_size, ts_route *target, const uint8_t *record,
                      int32_t record_size, int64_t now_ms);

/* timer/reschedule.c: no lock. */

/* Write the record at log_offset again, for another route and with these properties. The fields
 * that depend on its place in the log stay open. Return its size. */
int32_t ts_reschedule_encode(ts_view *view, const ts_log *log, int64_t log_offset,
                             const ts_route *target, const uint8_t *properties,
                             int32_t properties_size, uint8_t *out, int32_t out_bytes);
/* Write the record of a new message that replaces a pending one, in the same form. */
int32_t ts_replace_encode(const ts_log *log, const ts_route *target, const uint8_t *body,
                          int32_t body_size, const uint8_t *properties, int32_t properties_size,
                          int64_t now_ms, uint8_t *out, int32_t out_bytes);
/* Find the first of chained[*at .. count) whose message has this topic, key and slot time. Return 1
 * with *at and *id, or 0 without one. */
int32_t ts_chained_find(ts_view *view, const ts_chained *chained, int32_t count,
                        const uint8_t *topic, int32_t topic_size, const uint8_t *key,
                        int32_t key_size, int64_t out_ms, const ts_states *states,
                        uint32_t store_id, int32_t *at, int64_t *id);
