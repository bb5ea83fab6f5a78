/* The critical section of the commit log: the append lock as C takes it
 *                                         (docs/decisions/0002-group-commit.md). Python
 * takes the same mutex (fastpath/append_lock.c). */
#ifndef TS_CRITICAL_SECTION_H
#define TS_CRITICAL_SECTION_H

#include <pthread.h>

#include "timerstore.h"

/* Take the lock, and wait if necessary. The caller does not hold the GIL. Return TS_REENTRANT if
 * this thread already holds the lock. */
static inline int32_t ts_log_lock(const ts_log *log)
{
    return log->lock == NULL || pthread_mutex_lock(log->lock) == 0 ? TS_OK : TS_REENTRANT;
}

/* Try to take the lock without waiting. The caller may hold the GIL. Return 0 if another thread
 * holds the lock. */
static inline int ts_log_try_lock(const ts_log *log)
{
    return log->lock == NULL || pthread_mutex_trylock(log->lock) == 0;
}

static inline void ts_log_unlock(const ts_log *log)
{
    if (log->lock != NULL)
        (void)pthread_mutex_unlock(log->lock);
}

#endif
