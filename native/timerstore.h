/* Everything a source file needs: the standard headers and the door. */
#ifndef TIMERSTORE_H
#define TIMERSTORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api/engine.h"

#define TS_TIMER_TOPIC "rmq_sys_wheel_timer"
#define TS_LEVEL_TOPIC "SCHEDULE_TOPIC_XXXX"

#endif
