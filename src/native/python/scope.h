/* The scope around a driver's calls: this thread's capture mode, and a current context. */
#ifndef XP_SCOPE_H
#define XP_SCOPE_H

#include "objects.h"

typedef struct {
    int (*exchange)(int *mode); /* sets this thread's mode to the value there; NULL if captures may be disturbed */
    int (*push)(uint64_t context); /* NULL if no context is made current */
    int (*pop)(uint64_t *context);
    uint64_t context;
    int mode;
} xp_scope;

enum { XP_SCOPE_MODE, XP_SCOPE_CONTEXT }; /* which step failed */

/* Returns the driver's code; if it is an error, there is nothing to leave. Both may block in the driver. */
int xp_scope_enter(const xp_scope *scope, int *before, int *step);
void xp_scope_leave(const xp_scope *scope, int before);

const xp_scope *xp_scope_of(const xp_types *types, PyObject *object); /* borrowed; NULL: they are not Scopes */

#endif
