/* What the OS offers and Python does not: the only file here that calls it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>

#include "../timerstore.h"

int32_t ts_zero_range(int32_t fd, int64_t offset, int64_t size)
{
    if (fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, offset, size) == 0)
        return 0;
    return -errno;
}

int32_t ts_punch(int32_t fd, int64_t offset, int64_t size)
{
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size) == 0)
        return 0;
    return -errno;
}

int32_t ts_start_writing(int32_t fd, int64_t offset, int64_t size)
{
    if (sync_file_range(fd, offset, size, SYNC_FILE_RANGE_WRITE) == 0)
        return 0;
    return -errno;
}
