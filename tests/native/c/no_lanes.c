/* Lanes are in the Python half still: the warden finds none here. */
#include "../../../src/native/engine/events.h"

#define WEAK __attribute__((weak))

WEAK void xp_lane_ref(xp_lane *lane) { (void)lane; }
WEAK void xp_lane_unref(xp_lane *lane) { (void)lane; }
WEAK void xp_lane_waits(xp_lane *lane, int more) { (void)lane, (void)more; }
WEAK bool xp_lane_lose(xp_lane *lane, uint64_t at, uint32_t cause, uint64_t pid)
{
    (void)lane, (void)at, (void)cause, (void)pid;
    return true;
}
