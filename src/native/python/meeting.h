/* Refusals, for native code that reaches exporters: see meeting.c. */
#ifndef XP_MEETING_H
#define XP_MEETING_H

#include "../../engine/exporter.h"
#include "handle.h"

PyObject *xp_refused(const xp_types *types, const xp_refusal *why);

#endif
