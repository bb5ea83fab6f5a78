/* Batches of messages, as columns. */

/* Messages to put. Row k of a column is bytes[offsets[k] .. offsets[k + 1]). */
typedef struct {
    const ts_slice *parts;        /* NULL, or the address of each body, instead of the next two */
    const uint8_t *bodies;
    const int64_t *body_offsets;
    const int64_t *due_ms;        /* NULL, or a time that has passed: deliver now */
    const uint8_t *properties;    /* property text, the same for all rows */
    const uint8_t *extra;         /* NULL, or property text of each row */
    const int64_t *extra_offsets;
    const uint8_t *tags;          /* NULL, or values of TAGS; an empty value is left out */
    const int64_t *tag_offsets;
    const uint8_t *keys;          /* the same for KEYS */
    const int64_t *key_offsets;
    const uint8_t *ids;           /* the same for UNIQ_KEY; the store makes the missing ids */
    const int64_t *id_offsets;
    int64_t first_unique;         /* an id that the store makes for row k has this number + k */
    int32_t properties_size;
    int32_t count;
} ts_column_batch;

/* log/batch_spans.c: pure. */

/* Return the largest of `count` spans between count + 1 offsets, or -1 if the offsets do not ascend
 * within [0, bytes]. */
int64_t ts_spans_largest(const int64_t *offsets, int64_t count, int64_t bytes);
/* Set each time that is not after now_ms to 0. Return the first row later than latest_ms, or -1. */
int64_t ts_due_settle(int64_t *due_ms, int64_t count, int64_t now_ms, int64_t latest_ms);

/* log/put_many.c. log_offsets and queue_offsets are indexed by row, and may be NULL. */

/* Append rows of [from, to), as many as there is space for. Return their number. Needs the append
 * lock. */
int32_t ts_put_many(ts_log *log, ts_route *route, const ts_column_batch *rows, int32_t from,
                    int32_t to, int64_t now_ms, int64_t *log_offsets, int64_t *queue_offsets);
/* Do the same, taking the append lock for `hold` rows at a time. Return how many rows were
 * appended. If rows are left, *status says why, with *need. */
int32_t ts_put_many_locking(ts_log *log, ts_route *route, const ts_column_batch *rows, int32_t from,
                            int32_t to, int32_t hold, int64_t now_ms, int64_t *log_offsets,
                            int64_t *queue_offsets, int32_t *status, int64_t *need);
/* Return 1 if ts_put_many will append all rows for certain. The rows differ only in body and time;
 * body_bytes is the size of all bodies. Needs the append lock. */
int32_t ts_put_many_fits(const ts_log *log, const ts_route *route, const ts_column_batch *rows,
                         int32_t body_bytes, int64_t now_ms);
/* Return how many rows from `from` on, at most `most`, take at most `limit` bytes as one group.
 * *bytes is their size, *timers the number of them that wait. Needs no lock. */
int32_t ts_batch_measure(const ts_log *log, const ts_route *route, const ts_column_batch *rows,
                         int32_t from, int32_t most, int64_t limit, int64_t now_ms, int64_t *bytes,
                         int32_t *timers);
/* Append a head record, if there is one, and the rows [from, from + count): all or none. bytes and
 * timers are the results of ts_batch_measure for the same now_ms. log->out[0] is the head's queue
 * offset, log->out[1] the log's end. Needs the append lock. */
int32_t ts_put_group(ts_log *log, ts_route *head_route, const uint8_t *head, int32_t head_size,
                     ts_route *route, const ts_column_batch *rows, int32_t from, int32_t count,
                     int64_t bytes, int32_t timers, int64_t now_ms, int64_t *log_offsets,
                     int64_t *queue_offsets);
/* Return the size of a group's head record. Needs no lock. */
int64_t ts_group_head_bytes(const ts_log *log, const ts_route *route, int32_t head_size);
/* Return a digest of the rows [from, to), continued from `digest`. It depends on the order of rows,
 * not on how they are divided among calls. Due times enter it as the caller passed them. Needs no
 * lock. */
uint64_t ts_batch_digest(const ts_column_batch *rows, const uint8_t *topic, int32_t topic_size,
                         int32_t from, int32_t to, uint64_t digest);
