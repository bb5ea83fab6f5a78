/* The end of the commit log, and what appends to it. */

typedef struct ts_calendar ts_calendar; /* calendar.h */

/* What dispatch needs to know of a record that was just appended (log/append_hints.h). */
typedef struct {
    int64_t log_offset;
    int64_t queue_offset;
    int64_t store_ms;
    int64_t due_ms;           /* of a timer */
    const ts_route *route;    /* the record's queue */
    const ts_route *real;     /* of a timer: the queue of its delivery; else NULL */
    int32_t size;
    int32_t tags;             /* hash of the tag, or 0 */
    int32_t key_hash;         /* hash of its id, as in the index */
    int32_t has_tags;
} ts_append_hint;

/* A ring of append hints with one writer and one reader. */
typedef struct {
    ts_append_hint *at;       /* [capacity], a power of two */
    int64_t capacity;
    int64_t tail;             /* hints written so far; under the append lock */
    int64_t apart[8];         /* keeps the two counters in different cache lines */
    int64_t head;             /* hints read so far; written by dispatch only */
} ts_append_hints;

/* The end of the commit log. All fields: under the append lock. */
typedef struct {
    void *lock;               /* pthread_mutex_t, the append lock; NULL: there is one thread only */
    uint8_t *staging;         /* the active half */
    uint64_t *filled_mark;    /* in the staging's header: how much of the half is complete
                               * (format/staging_mark.h) */
    int64_t staging_bytes;    /* size of a half; one record and a blank always fit */
    int64_t base;             /* log offset of staging[0] */
    int64_t filled;           /* bytes of the half in use */
    int64_t append_limit;     /* log offset that no record may reach past */
    int64_t segment_bytes;
    int64_t need;             /* out, with TS_NEED_* */
    int64_t precision_ms;
    int64_t last_store_ms;    /* out: store time of the newest record */
    int64_t near_ms;          /* a put due later than now + near_ms waits for dispatch's next run */
    int64_t soon_ms;          /* a put due later than now + soon_ms may wait some milliseconds */
    int64_t near_end;         /* out: end of the last record that is due before near_ms */
    int64_t soon_end;         /* out: end of the last record that is due before soon_ms */
    int64_t out[2];           /* of a single put: queue offset or timer id, and unique counter, or
                                 log offset if it has an id; of a cancel or reschedule: queue offset
                                 or timer id, and log end */
    int64_t unique_counter;   /* low 48 bits of the next UNIQ_KEY */
    int64_t put_count;        /* messages put since opening */
    int64_t cancel_count;     /* messages cancelled since opening */
    int64_t reschedule_count; /* messages rescheduled since opening */
    ts_route *timer_route;
    ts_states *states;
    ts_calendar *calendar;    /* NULL: not counted; if it is too full, puts return TS_NEED_STATES */
    ts_append_hints *hints;   /* NULL: not written */
    uint8_t *templates;       /* ts_template_cache_bytes() bytes, zeros at first; NULL: no cache
                                 (log/template_cache.h) */
    int32_t dispatch_scheduled; /* dispatch will run within milliseconds without a wake-up */
    int32_t wait_count;       /* pulls that wait; without one, a put that is due soon may wait some
                                 milliseconds for dispatch, and a pull dispatches it itself */
    int32_t flush_armed;      /* flush or dispatch will run within the flush interval, so a put that
                                 is due later need not wake them */
    uint32_t store_id;
    int32_t property_crc;     /* whether records carry __CRC32# */
    int32_t mark_crc;         /* whether filled marks have a CRC, because a record had no __CRC32# */
    int32_t needed_only;      /* whether deliveries leave out REAL_TOPIC, REAL_QID and the times */
    uint8_t host[8];          /* store host and born host: IPv4 and port */
    uint8_t unique_prefix[20];
} ts_log;

/* log/append.c. All functions run under the append lock, except the two that take no log. */

/* Return the size of the template cache. */
int64_t ts_template_cache_bytes(void);
/* Append one message. It goes to its own topic at once if due_ms <= now_ms, else to the timer
 * topic. */
int64_t ts_put_one(ts_log *log, ts_route *route, const uint8_t *body, int32_t body_size,
                   int64_t due_ms, const uint8_t *properties, int32_t properties_size,
                   int64_t now_ms);
/* Append one message to a queue of the level topic. wanted_ms is its due time. */
int64_t ts_put_level(ts_log *log, ts_route *route, const uint8_t *body, int32_t body_size,
                     const uint8_t *properties, int32_t properties_size, int64_t now_ms,
                     int64_t wanted_ms);
/* Append the blank that ends the segment. */
int32_t ts_blank(ts_log *log);
/* Write a record with any header and one property text, as the format's test vectors need it. */
int32_t ts_encode(uint8_t *out, int32_t out_bytes, const uint8_t *topic, int32_t topic_size,
                  int32_t queue_id, int64_t queue_offset, int64_t log_offset, int32_t flag,
                  int32_t sys_flag, int64_t born_ms, const uint8_t *born_host, int64_t store_ms,
                  const uint8_t *store_host, const uint8_t *body, int32_t body_size,
                  const uint8_t *properties, int32_t properties_size, int32_t property_crc);
