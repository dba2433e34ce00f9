/* The module: puts the parts together, and gives Python the layout and the numbers of the protocol. */
#include "objects.h"

#include <stdio.h>

/* The code of a field for `struct`; an array is bytes. */
#define CODE(type, field)                                                                                             \
    _Generic(((type *)0)->field, uint16_t: 'H', uint32_t: 'I', int32_t: 'i', uint64_t: 'Q', default: 's')
#define FIELD(of, type, field) {of, #field, offsetof(type, field), sizeof(((type *)0)->field), CODE(type, field)}

static const struct {
    const char *of, *name;
    unsigned at, size;
    char code;
} fields[] = {
    FIELD("handle", xp_handle, magic), FIELD("handle", xp_handle, version), FIELD("handle", xp_handle, kind),
    FIELD("handle", xp_handle, flags), FIELD("handle", xp_handle, backend), FIELD("handle", xp_handle, device_uuid),
    FIELD("handle", xp_handle, boot_id), FIELD("handle", xp_handle, pid_namespace), FIELD("handle", xp_handle, pid),
    FIELD("handle", xp_handle, table_fd), FIELD("handle", xp_handle, cookie), FIELD("handle", xp_handle, generation),
    FIELD("handle", xp_handle, entry), FIELD("handle", xp_handle, reserved0), FIELD("handle", xp_handle, nonce),
    FIELD("handle", xp_handle, object), FIELD("handle", xp_handle, offset), FIELD("handle", xp_handle, nbytes),
    FIELD("handle", xp_handle, exposed_nbytes), FIELD("handle", xp_handle, net_namespace),
    FIELD("handle", xp_handle, reserved1), FIELD("handle", xp_handle, seal),
    FIELD("array", xp_array, magic), FIELD("array", xp_array, version), FIELD("array", xp_array, flags),
    FIELD("array", xp_array, length), FIELD("array", xp_array, ndim), FIELD("array", xp_array, text_nbytes),
    FIELD("array", xp_array, itemsize), FIELD("array", xp_array, reserved), FIELD("array", xp_array, offset),
    FIELD("array", xp_array, point), FIELD("array", xp_array, copied),
    FIELD("tree", xp_tree, magic), FIELD("tree", xp_tree, version), FIELD("tree", xp_tree, reserved),
    FIELD("tree", xp_tree, length), FIELD("tree", xp_tree, memory), FIELD("tree", xp_tree, events),
    FIELD("tree", xp_tree, arrays), FIELD("tree", xp_tree, steps), FIELD("tree", xp_tree, text_nbytes),
    FIELD("tree", xp_tree, copied),
    FIELD("leaf", xp_leaf, memory), FIELD("leaf", xp_leaf, event), FIELD("leaf", xp_leaf, dtype),
    FIELD("leaf", xp_leaf, ndim), FIELD("leaf", xp_leaf, reserved), FIELD("leaf", xp_leaf, offset),
    FIELD("table", xp_table, magic), FIELD("table", xp_table, version), FIELD("table", xp_table, pid),
    FIELD("table", xp_table, cookie), FIELD("table", xp_table, pid_namespace), FIELD("table", xp_table, commons_fd),
    FIELD("table", xp_table, bell_fd), FIELD("table", xp_table, commons_inode),
    FIELD("device", xp_device, backend), FIELD("device", xp_device, uuid), FIELD("device", xp_device, pci),
    FIELD("device", xp_device, driver_uuid),
    FIELD("entry", xp_entry, generation), FIELD("entry", xp_entry, retired), FIELD("entry", xp_entry, reason),
    FIELD("entry", xp_entry, kind), FIELD("entry", xp_entry, flags), FIELD("entry", xp_entry, slot),
    FIELD("entry", xp_entry, nonce), FIELD("entry", xp_entry, object), FIELD("entry", xp_entry, nbytes),
    FIELD("entry", xp_entry, exposed_nbytes), FIELD("entry", xp_entry, inode), FIELD("entry", xp_entry, fd_count),
    FIELD("entry", xp_entry, payload_nbytes), FIELD("entry", xp_entry, fds), FIELD("entry", xp_entry, offset),
    FIELD("entry", xp_entry, device), FIELD("entry", xp_entry, since), FIELD("entry", xp_entry, payload),
    FIELD("commons", xp_commons, magic), FIELD("commons", xp_commons, version), FIELD("commons", xp_commons, cookie),
    FIELD("commons", xp_commons, slots_used), FIELD("commons", xp_commons, entries_used),
    FIELD("member", xp_member, state), FIELD("member", xp_member, pid), FIELD("member", xp_member, pid_namespace),
    FIELD("member", xp_member, attached_ns), FIELD("member", xp_member, text),
    FIELD("slot", xp_words, value), FIELD("slot", xp_words, pending), FIELD("slot", xp_words, lost),
    FIELD("slot", xp_words, roster), FIELD("slot", xp_words, seq), FIELD("slot", xp_words, waiters),
    FIELD("slot", xp_words, async_waiters), FIELD("slot", xp_words, cause), FIELD("slot", xp_words, blame),
    FIELD("slot", xp_words, device), FIELD("slot", xp_words, guards), FIELD("slot", xp_words, facts),
    FIELD("slot", xp_words, attached), FIELD("roles", xp_roles, signallers),
    FIELD("roles", xp_roles, candidates),
    FIELD("opens", xp_opens, left), FIELD("opens", xp_opens, reserved), FIELD("opens", xp_opens, renewed),
    FIELD("request", xp_request, magic), FIELD("request", xp_request, op), FIELD("request", xp_request, cookie),
    FIELD("request", xp_request, entry), FIELD("request", xp_request, first), FIELD("request", xp_request, generation),
    FIELD("request", xp_request, nonce),
    FIELD("reply", xp_reply, magic), FIELD("reply", xp_reply, status), FIELD("reply", xp_reply, count),
    FIELD("reply", xp_reply, total),
};

typedef struct {
    const char *name;
    unsigned long long value;
} number;

/* Places and sizes that belong to no field. */
static const number places[] = {
    {"handle.size", sizeof(xp_handle)},
    {"table.devices", XP_TABLE_DEVICES}, {"table.header", XP_TABLE_HEADER}, {"table.entries", XP_ENTRIES},
    {"table.deadlines", XP_TABLE_DEADLINES}, {"table.size", XP_TABLE_SIZE}, {"device.size", sizeof(xp_device)}, {"entry.size", sizeof(xp_entry)},
    {"commons.members", XP_COMMONS_MEMBERS}, {"commons.holders", XP_COMMONS_HOLDERS},
    {"commons.opens", XP_COMMONS_OPENS}, {"commons.roles", XP_COMMONS_ROLES}, {"commons.slots", XP_COMMONS_SLOTS}, {"commons.size", XP_COMMONS_SIZE},
    {"commons.life", XP_LIFE_BYTE}, {"commons.reap", XP_REAP_BYTE},
    {"commons.member_count", XP_MEMBERS}, {"commons.slot_count", XP_SLOTS}, {"holders.size", XP_MEMBERS / 8},
    {"member.size", sizeof(xp_member)}, {"slot.size", sizeof(xp_words)},
    {"request.size", sizeof(xp_request)}, {"reply.size", sizeof(xp_reply)},
};

static const number constants[] = {
    {"VERSION", XP_VERSION}, {"ARRAY_VERSION", XP_ARRAY_VERSION}, {"ARRAY_EVENT", XP_ARRAY_EVENT},
    {"ARRAY_DIMS", XP_ARRAY_DIMS}, {"TREE_VERSION", XP_TREE_VERSION}, {"TREE_MOST", XP_TREE_MOST},
    {"CAUSE_DEATH", XP_CAUSE_DEATH}, {"CAUSE_QUEUE", XP_CAUSE_QUEUE}, {"CAUSE_EXIT", XP_CAUSE_EXIT},
    {"REASON_PUT", XP_REASON_PUT}, {"REASON_FREED", XP_REASON_FREED}, {"REASON_OPENS", XP_REASON_OPENS},
    {"REASON_TTL", XP_REASON_TTL}, {"REASON_PICKLE", XP_REASON_PICKLE},
    {"ENTRY_READ_ONLY", XP_ENTRY_READ_ONLY}, {"ENTRY_COUNTED", XP_ENTRY_COUNTED},
    {"ENTRY_ON_DEMAND", XP_ENTRY_ON_DEMAND}, {"ENTRY_PICKLED", XP_ENTRY_PICKLED},
    {"ENTRY_FORM_BIT", XP_ENTRY_FORM_BIT}, {"ENTRY_FORM", XP_ENTRY_FORM}, {"ENTRY_FDS", XP_ENTRY_FDS},
    {"KIND_MEMORY", XP_KIND_MEMORY}, {"KIND_PHYSICAL_MEMORY", XP_KIND_PHYSICAL_MEMORY}, {"KIND_EVENT", XP_KIND_EVENT},
    {"OP_HELLO", XP_OP_HELLO}, {"OP_FDS", XP_OP_FDS}, {"FDS_AT_ONCE", XP_FDS_AT_ONCE},
    {"STATUS_OK", XP_STATUS_OK}, {"STATUS_MALFORMED", XP_STATUS_MALFORMED},
    {"STATUS_OTHER_USER", XP_STATUS_OTHER_USER}, {"STATUS_NOT_LIVE", XP_STATUS_NOT_LIVE},
    {"STATUS_BUSY", XP_STATUS_BUSY}, {"STATUS_DRIVER_ERROR", XP_STATUS_DRIVER_ERROR},
};

static const struct {
    const char *name, *value;
} magics[] = {
    {"handle", XP_HANDLE_MAGIC}, {"array", XP_ARRAY_MAGIC}, {"tree", XP_TREE_MAGIC}, {"table", XP_TABLE_MAGIC}, {"commons", XP_COMMONS_MAGIC},
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* dict[key] = value. Takes over the reference to value, which may be NULL with an exception set. */
static int put(PyObject *dict, const char *key, PyObject *value)
{
    int rc = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return rc;
}

/* {structure: {field: (at, code of `struct`)}}, in the order of the declarations */
static int fill_structs(PyObject *structs)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < COUNT(fields); i++) {
        if (i == 0 || strcmp(fields[i].of, fields[i - 1].of) != 0)
            rc = put(structs, fields[i].of, PyDict_New());
        PyObject *of = rc == 0 ? PyDict_GetItemString(structs, fields[i].of) : NULL;
        PyObject *code = fields[i].code == 's' ? PyUnicode_FromFormat("%us", fields[i].size)
                                               : PyUnicode_FromFormat("%c", fields[i].code);
        rc = of && code ? put(of, fields[i].name, Py_BuildValue("(IO)", fields[i].at, code)) : -1;
        Py_XDECREF(code);
    }
    return rc;
}

static int fill_layout(PyObject *layout)
{
    int rc = 0;
    char name[64];
    for (size_t i = 0; rc == 0 && i < COUNT(fields); i++) {
        snprintf(name, sizeof name, "%s.%s", fields[i].of, fields[i].name);
        rc = put(layout, name, PyLong_FromUnsignedLong(fields[i].at));
    }
    for (size_t i = 0; rc == 0 && i < COUNT(places); i++)
        rc = put(layout, places[i].name, PyLong_FromUnsignedLongLong(places[i].value));
    return rc;
}

static int fill_constants(PyObject *dict)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < COUNT(constants); i++)
        rc = put(dict, constants[i].name, PyLong_FromUnsignedLongLong(constants[i].value));
    return rc;
}

static int fill_magics(PyObject *dict)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < COUNT(magics); i++)
        rc = put(dict, magics[i].name, PyBytes_FromString(magics[i].value));
    return rc;
}

static int add_dict(PyObject *module, const char *name, int (*fill)(PyObject *dict))
{
    PyObject *dict = PyDict_New();
    int rc = dict && fill(dict) == 0 ? PyModule_AddObjectRef(module, name, dict) : -1;
    Py_XDECREF(dict);
    return rc;
}

static int module_exec(PyObject *module)
{
    if (add_dict(module, "STRUCTS", fill_structs) < 0 || add_dict(module, "LAYOUT", fill_layout) < 0 ||
        add_dict(module, "CONSTANTS", fill_constants) < 0 || add_dict(module, "MAGICS", fill_magics) < 0 ||
        xp_init_process(module) < 0 || xp_init_fds(module) < 0 || xp_init_memory(module) < 0 ||
        xp_init_span(module) < 0 || xp_init_dlpack(module) < 0 || xp_init_domain(module) < 0 ||
        xp_init_peer(module) < 0 || xp_init_seal(module) < 0 || xp_init_slot(module) < 0 || xp_init_queue(module) < 0 ||
        xp_init_warden(module) < 0 || xp_init_serve(module) < 0 || xp_init_hand_over(module) < 0 ||
        xp_init_tree(module) < 0 || xp_init_scope(module) < 0 || xp_init_allocations(module) < 0 ||
        xp_init_foreign(module) < 0)
        return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* shared C state has mutexes of its own */
#endif
    {0, NULL},
};

xp_types *xp_types_of(PyObject *module) { return PyModule_GetState(module); }

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    xp_types *s = xp_types_of(module);
    Py_VISIT(s->fields);
    Py_VISIT(s->lease);
    Py_VISIT(s->mapping);
    Py_VISIT(s->span);
    Py_VISIT(s->queue_calls);
    Py_VISIT(s->owned_fd);
    Py_VISIT(s->seal);
    Py_VISIT(s->template);
    Py_VISIT(s->own_table);
    Py_VISIT(s->tree_parts);
    Py_VISIT(s->leaves);
    Py_VISIT(s->domain);
    Py_VISIT(s->peer_table);
    Py_VISIT(s->slot);
    Py_VISIT(s->importer);
    Py_VISIT(s->stream_queue);
    Py_VISIT(s->idle_check);
    Py_VISIT(s->scopes);
    Py_VISIT(s->with);
    Py_VISIT(s->recogniser);
    return 0;
}

static int module_clear(PyObject *module)
{
    xp_types *s = xp_types_of(module);
    Py_CLEAR(s->fields);
    Py_CLEAR(s->lease);
    Py_CLEAR(s->mapping);
    Py_CLEAR(s->span);
    Py_CLEAR(s->queue_calls);
    Py_CLEAR(s->owned_fd);
    Py_CLEAR(s->seal);
    Py_CLEAR(s->template);
    Py_CLEAR(s->own_table);
    Py_CLEAR(s->tree_parts);
    Py_CLEAR(s->leaves);
    Py_CLEAR(s->domain);
    Py_CLEAR(s->peer_table);
    Py_CLEAR(s->slot);
    Py_CLEAR(s->importer);
    Py_CLEAR(s->stream_queue);
    Py_CLEAR(s->idle_check);
    Py_CLEAR(s->scopes);
    Py_CLEAR(s->with);
    Py_CLEAR(s->recogniser);
    Py_CLEAR(s->held_name);
    return 0;
}

static void module_free(void *module) { module_clear(module); }

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "xpushare._native",
    .m_doc = "The compiled part of xpushare; see _native.pyi.",
    .m_size = sizeof(xp_types),
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
