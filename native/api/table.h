/* Tables: records, timer units and slots as rows. */

/* Texts of a record, by number in ts_table_row. */
enum ts_span {
    TS_SPAN_BODY = 0,
    TS_SPAN_TOPIC = 1,
    TS_SPAN_ID = 2,        /* UNIQ_KEY */
    TS_SPAN_KEYS = 3,
    TS_SPAN_TAGS = 4,
    TS_SPAN_REAL_TOPIC = 5,
    TS_SPAN_PROPERTIES = 6,
    TS_SPAN_COUNT = 7
};

/* What ts_table_scan reads besides the record's head; a bit each. */
enum ts_table_want { TS_WANT_MARKS = 1, TS_WANT_NAMES = 2, TS_WANT_PAIRS = 4 };

/* One record as a row of a table. */
typedef struct {
    int64_t log_offset;
    int64_t queue_offset;
    int64_t born_ms;
    int64_t store_ms;
    int64_t due_ms;        /* 0: not known */
    int64_t timer_id;      /* -1: no timer */
    int32_t at[7];         /* enum ts_span: offset in the window; -1: missing */
    int32_t sizes[7];
    int32_t size;          /* of the whole record */
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag;
    int32_t body_crc;
    int32_t kind;          /* enum ts_kind */
    int32_t roll_times;
    int32_t delay_level;
    int32_t pair_count;    /* of properties, each name once */
    int32_t names_size;
    int32_t values_size;
} ts_table_row;

/* The records that become rows. A range of times is [from, to). A record without that time does not
 * match a bounded range. */
typedef struct {
    int64_t due_from_ms;
    int64_t due_to_ms;
    int64_t store_from_ms;
    int64_t store_to_ms;
    const uint8_t *topics;
    const int32_t *topic_offsets; /* [topic_count + 1] */
    int32_t topic_count;          /* 0: any */
    int32_t key_count;            /* 0: any; else one of the words of KEYS must be one of these */
    const uint8_t *keys;
    const int32_t *key_offsets;   /* [key_count + 1] */
    const uint8_t *names;         /* of properties: the pairs of other names are left out */
    const int32_t *name_offsets;  /* [name_count + 1] */
    int32_t name_count;           /* 0: all pairs */
    const uint8_t *without;       /* records of this topic are left out */
    int32_t without_size;         /* 0: none */
    int32_t by_real_topic;        /* compare REAL_TOPIC instead of the record's own topic */
    int32_t kinds;                /* bit 1 << enum ts_kind; 0: any, and the kind is not read */
    int32_t has_due;              /* whether due times are bounded */
    int32_t has_store;
    const uint8_t *timer_bits;    /* NULL: any; else of the timer topic only records whose queue
                                   * offset has its bit set, the lowest bit of a byte first */
    int64_t first_timer;          /* the queue offset of the first bit */
    int64_t timer_bit_count;
} ts_table_filter;

/* A timer unit as a row. */
typedef struct {
    int64_t timer_pos;
    int64_t prev_pos;
    int64_t slot_ms;
    int64_t write_ms;
    int64_t log_offset;
    int32_t size;
    int32_t magic;
    int32_t topic_hash;
    int32_t reserved;
} ts_unit_row;

/* A used slot as a row. */
typedef struct {
    int64_t time;          /* in slots since the epoch */
    int64_t first_pos;
    int64_t last_pos;
    int32_t slot;          /* its index on the wheel */
    int32_t count;
} ts_slot_row;

/* All functions of this header are pure. The bytes must not be written concurrently. Each scan
 * begins at log offset `from` and skips the blank that ends a segment. It stops at the window's
 * end, at `capacity`, or when the sizes reach bytes_max; *next is where to continue. If it returns
 * 0 rows and *next did not move, it returns TS_NEED_SPACE (more bytes of this segment are needed),
 * TS_CORRUPT, or there is nothing below window->end. */

/* table/message_rows.c. Read records as rows. sums: the bytes of each span, then of pairs, names
 * and values. */
int32_t ts_table_scan(ts_window *window, int64_t precision_ms, const ts_table_filter *filter,
                      int32_t wants, int64_t from, int64_t *next, int64_t bytes_max,
                      int32_t capacity, ts_table_row *rows, int64_t *sums);
/* Copy one span of all rows to a column: offsets [count + 1], data as long as its sum, and a bit
 * for each row that has it. */
void ts_table_text(const ts_window *window, const ts_table_row *rows, int32_t count, int32_t span,
                   int32_t *offsets, uint8_t *data, uint8_t *validity);
/* Copy the properties to a column of lists of (name, value). filter: that of the scan. */
void ts_table_pairs(const ts_window *window, const ts_table_row *rows, int32_t count,
                    const ts_table_filter *filter, int32_t *offsets, int32_t *name_offsets,
                    uint8_t *names, int32_t *value_offsets, uint8_t *values);

/* table/window.c */

/* Do what ts_scan does, for a window, and without routes: `route` is -1. */
int32_t ts_window_scan(ts_window *window, int64_t precision_ms, int64_t from, int64_t *next,
                       int32_t capacity, ts_scanned *out);
/* Count at most `limit` records from `from` on. */
int64_t ts_window_count(ts_window *window, int64_t from, int64_t *next, int64_t limit);

/* table/timer_rows.c */

int32_t ts_units_scan(ts_window *window, int64_t from, int64_t *next, int32_t capacity,
                      ts_unit_row *rows);
/* Read `count` slots of the wheel, the first of which has number `first`. */
int32_t ts_slots_scan(const uint8_t *slots, int64_t first, int64_t count, int64_t slot_count,
                      ts_slot_row *rows);
