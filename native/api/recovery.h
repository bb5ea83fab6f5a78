/* Recovery: scanning the log, rebuilding states, and the small checkpoint files. */

/* What a scanned record means to the fold (timerstore/_engine/log/fold.py). */
enum ts_kind {
    TS_KIND_ORDINARY = 0,
    TS_KIND_TIMER = 1,
    TS_KIND_DELETE = 2,
    TS_KIND_DELIVERED = 3,
    TS_KIND_LEVEL = 4,
    TS_KIND_LEVEL_DELIVERED = 5,
    TS_KIND_UNUSABLE = 6,
    TS_KIND_LEVEL_UNUSABLE = 7
};

/* One record as the fold sees it. For a delivery of a level, timer_id is its place, and store_id
 * the store that delivered it. */
typedef struct {
    int64_t log_offset;
    int64_t queue_offset;
    int64_t store_ms;
    int64_t due_ms;
    int64_t out_ms;
    int64_t timer_id;
    uint64_t identity;
    uint64_t bare_identity;
    int32_t size;
    int32_t kind;
    uint32_t store_id;
    int32_t roll_times;
    int32_t delay_level;
    int32_t queue_id;
    int32_t topic_hash;
    int32_t route;
    int32_t vouches;      /* a copy that rolled or was moved, at the place that it names: its store
                             id belongs to this store's history */
} ts_scanned;

/* recovery/scan.c */

/* Check and describe records from `from` on. Stops at the first invalid record (view->fault). */
int32_t ts_scan(ts_view *view, const ts_routes *routes, int64_t precision_ms, int64_t from,
                int64_t *next, int32_t capacity, ts_scanned *out);
/* Find the topic and properties of the record at a log offset. */
int32_t ts_record_at(ts_view *view, int64_t log_offset, int64_t *topic_at, int32_t *topic_size,
                     int64_t *properties_at, int32_t *properties_size, int32_t *queue_id,
                     int32_t *size);
/* Read the store time of the record at a log offset. */
int32_t ts_record_store_ms(ts_view *view, int64_t log_offset, int64_t *store_ms);

/* recovery/staged.c. Return how many bytes of a half of the staging file recovery accepts: complete
 * records from its begin (format/staging_mark.h). base: log offset of the half. */
int64_t ts_staged_bytes(const uint8_t *half, int64_t half_bytes, int64_t base, uint64_t mark);

/* timer/states.c. Apply scanned records to the state table and to the routes' counts. Needs the
 * append lock. */
int32_t ts_states_fold(ts_states *states, ts_route **routes, const ts_scanned *scanned,
                       int32_t count, uint32_t store_id, int64_t *need);

/* recovery/checkpoint_files.c. The small files of fixed size, as arrays of their fields in order
 * (format/timer_check.h, format/store_checkpoint.h). */
void ts_timer_check_pack(const int64_t *fields, uint8_t *out);
int32_t ts_timer_check_unpack(const uint8_t *at, int64_t available, int64_t *fields);
void ts_store_checkpoint_pack(const int64_t *fields, uint8_t *out);
