/* File operations that Python does not offer. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifndef STATX_SIZE
#include <linux/stat.h> /* a libc that is older than the call */
#endif

#include "timerstore.h"

/* Write many small blocks in one call. Return 0, or -errno of the first failing write; the blocks
 * before it are written. */
int32_t ts_write_each(int32_t fd, const uint8_t *data, int32_t size, int32_t count,
                      const int64_t *offsets)
{
    for (int32_t i = 0; i < count; i++) {
        const uint8_t *at = data + (int64_t)i * size;
        int32_t done = 0;

        while (done < size) {
            ssize_t got = pwrite(fd, at + done, (size_t)(size - done), offsets[i] + done);

            if (got == 0 || (got < 0 && errno != EINTR))
                return got == 0 ? -EIO : -errno;
            done += got < 0 ? 0 : (int32_t)got;
        }
    }
    return 0;
}

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

int64_t ts_length_in_place(int32_t fd)
{
    struct stat old;
#if defined(STATX_SIZE) && defined(SYS_statx)
    struct statx found;

    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_NLINK, &found) == 0)
        return found.stx_nlink ? (int64_t)found.stx_size : -ENOENT;
    /* Old kernels lack the call, and some containers forbid it. */
#endif
    if (fstat(fd, &old) < 0)
        return -errno;
    return old.st_nlink ? (int64_t)old.st_size : -ENOENT;
}
