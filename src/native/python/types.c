/* The state of the module: the types that the other files register, and whose objects they make. */
#include "objects.h"

xp_types *xp_types_of(PyObject *module) { return PyModule_GetState(module); }

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
    Py_CLEAR(types->itemsize);
    Py_CLEAR(types->differs);
    Py_CLEAR(types->dtype);
    Py_CLEAR(types->strides);
}
