/* Deduplication: the message ids that callers chose, within a window of time. */

enum ts_outcome { TS_DUPLICATE = -2 }; /* in place of a queue offset */

/* A message id that a caller chose: hash of topic and id, and when the message was first put. */
typedef struct {
    uint64_t hash;
    int64_t log_offset;
    int64_t store_ms;
} ts_id;

/* Ids in log order. */
typedef struct {
    ts_id *entries;       /* [capacity], a power of two */
    uint32_t *slots;      /* [2 * capacity]: index in entries + 1, or 0 */
    int64_t capacity;
    int64_t limit;        /* of count; at most the capacity */
    int64_t count;
    int64_t newest_ms;
} ts_id_table;

/* All ids that may still be in the window, and some older ones. Under the append lock. */
typedef struct {
    ts_id_table tables[32]; /* oldest first; new ids go to the last */
    int32_t table_count;
    int64_t window_ms;
} ts_ids;

/* The first message with an id. */
typedef struct {
    int64_t log_offset;   /* in */
    int64_t store_ms;
    int64_t due_ms;       /* of a timer, else store_ms */
    int64_t timer_id;     /* -1: no timer */
    int64_t queue_offset; /* -1: a timer */
    int32_t queue_id;
    int32_t level;        /* 0: no level */
    int32_t is_same;      /* 1: it has this topic and id; 0: only the hash is equal */
    int32_t is_cancelled;
    int32_t is_moved;     /* a reschedule wrote its record */
    int32_t has_body;     /* it has the body of the row that repeats its id */
    int32_t has_properties; /* and the same properties from its caller, in the same order */
    int32_t body_size;
    int32_t body_crc;     /* CRC-32 without its top bit */
    int32_t unused;
} ts_first_message;

/* log/append.c. Append one message like ts_put_one, with an id of the caller, and remember the id.
 * Return the message's log offset, or that of the first message with the id; *is_new says which.
 * ids: NULL to remember none. Needs the append lock. */
int64_t ts_put_named(ts_log *log, ts_ids *ids, const uint8_t *topic, int32_t topic_size,
                     ts_route *route, const uint8_t *body, int32_t body_size, int64_t due_ms,
                     const uint8_t *properties, int32_t properties_size, const uint8_t *id,
                     int32_t id_size, int64_t now_ms, int32_t *is_new);

/* log/put_many.c. Append rows like ts_put_many, except a row whose id was put before at an offset
 * lower than below[row]. Such a row gets that message's log offset, and TS_DUPLICATE as its queue
 * offset. topic_hash is ts_identity of the real topic; once_ms goes to TS_ONCE and to the table.
 * Needs the append lock. */
int32_t ts_put_once(ts_log *log, ts_ids *ids, uint64_t topic_hash, ts_route *route,
                    const ts_column_batch *rows, int32_t from, int32_t to, const int64_t *below,
                    int64_t once_ms, int64_t now_ms, int64_t *log_offsets, int64_t *queue_offsets);

/* log/message_ids.c. look, add, load and move run under the append lock. */

/* Set each row's log offset to that of the first message with its id, or to -1. Return how many are
 * known. */
int64_t ts_ids_look(const ts_ids *ids, uint64_t topic_hash, const ts_column_batch *rows,
                    int32_t from, int32_t to, const int64_t *below, int64_t now_ms,
                    int64_t *log_offsets);
/* Set each row's `earlier` to the first row with its id, or to -1. Return how many repeat an id.
 * `slots` are zeros; slot_count is a power of two, larger than the number of rows. Needs no lock. */
int32_t ts_ids_repeated(const ts_column_batch *rows, uint32_t *slots, int32_t slot_count,
                        int32_t *earlier);
/* Add the ids of rows, or entries. Return how many there was space for. */
int32_t ts_ids_add(ts_ids *ids, uint64_t topic_hash, const ts_column_batch *rows, int32_t from,
                   int32_t to, const int64_t *log_offsets, int64_t store_ms);
int32_t ts_ids_load(ts_ids *ids, const ts_id *entries, int32_t count);
/* Change the log offset of an id, whose message has another record now. */
int32_t ts_ids_move(ts_ids *ids, const uint8_t *topic, int32_t topic_size, const uint8_t *id,
                    int32_t size, int64_t log_offset, int64_t now_ms);
/* Read the ids of the log from `from` on. Return their number; *next is where to continue. */
int32_t ts_ids_scan(ts_view *view, uint32_t store_id, int64_t from, int64_t *next, int32_t capacity,
                    ts_id *entries);
/* Read the records of first messages, and compare them with the rows that repeat their ids: the
 * bodies, and the texts `properties` and `extra`. Return how many were read. States as for ts_state_get. */
int32_t ts_first_messages(ts_view *view, const ts_states *states, uint32_t store_id,
                          int64_t precision_ms, const uint8_t *topic, int32_t topic_size,
                          const ts_column_batch *rows, const int32_t *which, int32_t count,
                          ts_first_message *firsts);
