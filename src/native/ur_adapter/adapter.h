/* libur_adapter_xpushare: what Unified Runtime's own loader loads. It answers by the functions of `xpushare.ur`, in an
 * interpreter that the program has, or that it starts. Nothing here is linked with Python. */
#ifndef XP_ADAPTER_H
#define XP_ADAPTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XP_EXPORT __attribute__((visibility("default")))

/* Results of Unified Runtime. */
enum {
    XP_SUCCESS = 0,
    XP_INVALID_OPERATION = 1,
    XP_UNINITIALIZED = 37,
    XP_UNSUPPORTED_VERSION = 43,
    XP_UNSUPPORTED_FEATURE = 44,
    XP_INVALID_NULL_POINTER = 48,
    XP_UNKNOWN = 0x7ffffffe
};

typedef void (*xp_slot)(void);
typedef struct {
    uint64_t x, y, z;
} xp_three; /* ur_rect_offset_t, ur_rect_region_t */

/* --- adapter.c ---------------------------------------------------------------------------------------------------- */
uint32_t xp_answer(unsigned function, const uint64_t *words, unsigned count);
void xp_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- interpreter.c ------------------------------------------------------------------------------------------------ */
bool xp_python_start(unsigned functions); /* false: said why. Blocks; once it has failed it fails */
/* XP_SUCCESS: it can be asked until `xp_python_exit`. Else it never can be again: it has ended, or is the parent's. */
uint32_t xp_python_enter(void);
void xp_python_exit(void);
uint32_t xp_python_call(unsigned function, const uint64_t *words, unsigned count);

/* --- loader.c ----------------------------------------------------------------------------------------------------- */
/* Of the functions in the tables that what has `code` in it names: how many there are, and the sum of their hashes. */
void xp_fingerprint(const void *code, unsigned *count, uint64_t *sum);

#endif
