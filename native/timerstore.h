/* Everything that a source file needs: the standard headers, and the interface to Python.
 *
 * build.py reads this list, too: cffi gets the headers in this order.
 */
#ifndef TIMERSTORE_H
#define TIMERSTORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api/status.h"
#include "api/hash.h"
#include "api/route.h"
#include "api/state.h"
#include "api/log.h"
#include "api/batch.h"
#include "api/message_ids.h"
#include "api/timer.h"
#include "api/wheel.h"
#include "api/delivery.h"
#include "api/change.h"
#include "api/calendar.h"
#include "api/index.h"
#include "api/dispatch.h"
#include "api/read.h"
#include "api/recovery.h"
#include "api/table.h"
#include "api/os.h"
#include "api/wire.h"

#define TS_TIMER_TOPIC "rmq_sys_wheel_timer"
#define TS_LEVEL_TOPIC "SCHEDULE_TOPIC_XXXX"

#endif
