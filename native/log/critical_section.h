/* The append lock as C takes it (decision 0056): Python takes the same one (native/fastpath/append_lock.c). */
#ifndef TS_CRITICAL_SECTION_H
#define TS_CRITICAL_SECTION_H

#include <pthread.h>

#include "timerstore.h"

/* For who has no GIL: may wait. TS_REENTRANT where this thread has it. */
static inline int32_t ts_log_lock(const ts_log *log)
{
    return log->lock == NULL || pthread_mutex_lock(log->lock) == 0 ? TS_OK : TS_REENTRANT;
}

/* For who has the GIL: 0 where it is taken. */
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
