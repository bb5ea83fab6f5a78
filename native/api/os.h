/* Calls of the operating system, used by storage/disk.py and storage/guarded_map.py only. */

/* os/file_io.c. Each function returns 0 or -errno, unless it says otherwise. */

/* Fill a range with zeros without changing the file's size. */
int32_t ts_zero_range(int32_t fd, int64_t offset, int64_t size);
/* Start writing a range to the disk, and do not wait for it. */
int32_t ts_start_writing(int32_t fd, int64_t offset, int64_t size);
/* Write `count` blocks of `size` bytes, each at its offset. After an error the blocks before the
 * failing one are written. */
int32_t ts_write_each(int32_t fd, const uint8_t *data, int32_t size, int32_t count,
                      const int64_t *offsets);
/* Free the disk blocks of a range. */
int32_t ts_punch(int32_t fd, int64_t offset, int64_t size);
/* Return the length of an open file, -ENOENT if it lost its name, or -errno. The times of the file
 * are not read: from Linux 6.13 on, the write after such a read gets a time of its own, and its
 * sync takes about a third longer. */
int64_t ts_length_in_place(int32_t fd);

/* os/map_guard.c: maps whose file another process may truncate. install, add and remove: under one
 * lock of the caller. hits and is_hit: at any time. */

int32_t ts_guard_install(void);
/* Return the address of the number of faults so far. */
const int32_t *ts_guard_hits(void);
/* Guard a map. Return its number, or TS_FULL if there are too many; then a fault in this map ends
 * the process, as it would without a guard. */
int32_t ts_guard_add(const uint8_t *at, int64_t size);
int32_t ts_guard_is_hit(int32_t number);
/* Remove the guard. Call this before unmapping. */
void ts_guard_remove(int32_t number);
