/* The key index: from a topic and key to the messages that have it. */

/* One key of one message, on its way to the index. */
typedef struct {
    int64_t log_offset;
    int64_t store_ms;
    int32_t hash;       /* of topic#key, not negative */
    int32_t slot;       /* scratch of ts_index_append */
} ts_key;

/* Keys of the records that a call reads. One message has at most 16,385. */
typedef struct {
    ts_key *at;         /* [capacity] */
    int64_t capacity;
    int64_t count;      /* in, out */
    int64_t begin;      /* records at lower log offsets add no keys */
    int64_t has_tags;   /* whether a message's tags are keys too, as in 5.4 of the broker: T#tags */
} ts_keys;

/* The index file that takes entries, without the entries. All fields: under the index's lock. */
typedef struct {
    uint8_t *slots;        /* 4 bytes each */
    uint8_t *dirty_pages;  /* one byte per 4096 bytes of slots */
    int64_t slot_count;
    int64_t entry_count;
    int64_t next_entry;    /* 1 to entry_count; at entry_count the file is full */
    int64_t slots_used;
    int64_t begin_ms;      /* until the file has an entry, these four are of the previous file's
                            * last */
    int64_t end_ms;
    int64_t begin_offset;
    int64_t end_offset;
} ts_index;

/* A query: messages of one topic that have a key. */
typedef struct {
    const uint8_t *topic;
    const uint8_t *key;      /* NULL: any */
    const uint8_t *real;     /* NULL, or the real topic of a message that waits */
    const ts_states *states; /* NULL, or: only timers that wait */
    const int64_t *also;     /* ascending: timer ids that count as pending, too */
    int64_t also_count;
    int64_t begin_ms;        /* store times in [begin_ms, end_ms); end INT64_MAX: no limit */
    int64_t end_ms;
    int32_t topic_size;
    int32_t key_size;
    int32_t real_size;
    uint32_t store_id;
} ts_query;

/* A message that matches. */
typedef struct {
    int64_t log_offset;
    int64_t timer_id;     /* -1: no timer of this store */
    int64_t queue_offset;
    int32_t queue_id;
    int32_t size;
} ts_found;

/* index/key_index.c */

/* Collect the keys of the records between `from` and view->end. */
int64_t ts_index_keys(ts_view *view, int64_t from, int64_t *next, int64_t capacity,
                      ts_keys *keys);
/* Append keys to the file. Return how many it took. `entries` has space for all. */
int64_t ts_index_append(ts_index *index, ts_key *keys, int64_t count, uint8_t *entries);
/* Build the slots from the entries. Return TS_CORRUPT if the entries are not valid. */
int32_t ts_index_relink(ts_index *index, const uint8_t *entries, int64_t count);
/* Return the index's hash of a topic and key. */
int32_t ts_index_hash(const uint8_t *topic, int32_t topic_size, const uint8_t *key,
                      int32_t key_size);
/* Return the newest entry of the slot of a hash, or 0. */
int32_t ts_index_slot(const uint8_t *slots, int64_t slot_count, int32_t hash);
/* Write the log offsets of a chain from entry *number on. *number is where to continue, 0 at the
 * end. Every entry of the file below `limit` is written. */
int32_t ts_index_find(const uint8_t *entries, int64_t slot_count, int64_t limit, int32_t hash,
                      int64_t file_begin_ms, int64_t begin_ms, int64_t end_ms, int64_t *number,
                      int64_t *log_offsets, int32_t capacity);
/* Select the records that match the query. Return how many log offsets were read; *matched is the
 * number of matches. */
int32_t ts_index_check(ts_view *view, const ts_query *query, const int64_t *log_offsets,
                       int32_t count, ts_found *found, int32_t *matched);
void ts_index_header_put(const ts_index *index, uint8_t *out);
int32_t ts_index_header_get(ts_index *index, const uint8_t *at);
