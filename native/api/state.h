/* The state of each timer id. */

/* Two bits. A state only changes from NONE or WAITING to DELIVERED or CANCELLED. */
enum ts_state { TS_NONE = 0, TS_PENDING = 1, TS_DELIVERED = 2, TS_CANCELLED = 3 };

/* Two bits per timer id, in chunks of the size of a disk sector. */
typedef struct {
    uint8_t **blocks;     /* 128 chunks of 480 bytes (1920 ids) each, then 128 dirty flags; NULL: no
                             id of the block waits, and the log has no record of one */
    int64_t end;          /* lower ids have a block */
    int64_t pending;      /* number of ids that wait */
} ts_states;

/* timer/states.c. The functions that change the table, and copy_dirty, run under the append lock.
 */
int32_t ts_state_get(const ts_states *states, int64_t id);
int32_t ts_state_set(ts_states *states, int64_t id, int32_t state);
void ts_states_set_many(ts_states *states, const int64_t *ids, int64_t count, int32_t state);
/* Set waits[k] to 1 if ids[k] waits, else to 0. */
void ts_states_wait(const ts_states *states, const int64_t *ids, int64_t count, uint8_t *waits);
/* Copy the chunks that changed since the last call, and clear their flags. Return their number. */
int64_t ts_states_copy_dirty(ts_states *states, int64_t *chunks, uint8_t *payloads,
                             int64_t capacity);
/* Write the pending ids from `from` on. Return their number; *next is where to continue. */
int64_t ts_states_pending(const ts_states *states, int64_t from, int64_t *ids, int64_t capacity,
                          int64_t *next);
/* Copy the table to `out`. `blocks` has memory for each block of the table. */
void ts_states_copy(const ts_states *states, uint8_t **blocks, ts_states *out);
