/* The state of the module: the types that the other files register, and whose objects they make. */
#include "objects.h"

xp_types *xp_types_of(PyObject *module) { return PyModule_GetState(module); }

bool xp_types_begin(xp_types *types)
{
#define INTERN(name, text) (types->name = PyUnicode_InternFromString(text)) &&
    return XP_EVERY_NAME(INTERN) true;
#undef INTERN
}

int xp_types_visit(xp_types *types, visitproc visit, void *arg)
{
#define VISIT(name) Py_VISIT(types->name);
    XP_EVERY_TYPE(VISIT)
#undef VISIT
    return 0;
}

void xp_types_clear(xp_types *types)
{
#define CLEAR(name) Py_CLEAR(types->name);
    XP_EVERY_TYPE(CLEAR)
#undef CLEAR
#define CLEAR(name, text) Py_CLEAR(types->name);
    XP_EVERY_NAME(CLEAR)
#undef CLEAR
}
