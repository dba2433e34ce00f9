/* The module: puts the parts together and tells the layout. */
#include "objects.h"

static int add_layout(PyObject *module)
{
    static const struct {
        const char *name;
        unsigned long long value;
    } items[] = {
#define AT(prefix, type, field) {prefix "." #field, offsetof(type, field)}
        AT("handle", xp_handle, magic), AT("handle", xp_handle, version), AT("handle", xp_handle, kind),
        AT("handle", xp_handle, flags), AT("handle", xp_handle, backend), AT("handle", xp_handle, device_uuid),
        AT("handle", xp_handle, boot_id), AT("handle", xp_handle, pid_namespace), AT("handle", xp_handle, pid),
        AT("handle", xp_handle, table_fd), AT("handle", xp_handle, cookie), AT("handle", xp_handle, generation),
        AT("handle", xp_handle, entry), AT("handle", xp_handle, reserved0), AT("handle", xp_handle, nonce),
        AT("handle", xp_handle, object), AT("handle", xp_handle, offset), AT("handle", xp_handle, nbytes),
        AT("handle", xp_handle, exposed_nbytes), AT("handle", xp_handle, net_namespace),
        AT("handle", xp_handle, reserved1), AT("handle", xp_handle, seal), {"handle.size", sizeof(xp_handle)},
        AT("table", xp_table, magic), AT("table", xp_table, version), AT("table", xp_table, pid),
        AT("table", xp_table, cookie), AT("table", xp_table, pid_namespace), AT("table", xp_table, commons_fd),
        AT("table", xp_table, bell_fd), AT("table", xp_table, commons_inode),
        {"table.header", XP_TABLE_HEADER}, {"table.entries", XP_ENTRIES},
        {"table.size", XP_TABLE_HEADER + (unsigned long long)XP_ENTRIES * sizeof(xp_entry)},
        AT("entry", xp_entry, generation), AT("entry", xp_entry, retired), AT("entry", xp_entry, reason),
        AT("entry", xp_entry, kind), AT("entry", xp_entry, flags), AT("entry", xp_entry, slot),
        AT("entry", xp_entry, nonce), AT("entry", xp_entry, object), AT("entry", xp_entry, nbytes),
        AT("entry", xp_entry, exposed_nbytes), AT("entry", xp_entry, inode), AT("entry", xp_entry, fd_count),
        AT("entry", xp_entry, payload_nbytes), AT("entry", xp_entry, fds), AT("entry", xp_entry, payload),
        {"entry.size", sizeof(xp_entry)},
        AT("commons", xp_commons, magic), AT("commons", xp_commons, version), AT("commons", xp_commons, cookie),
        AT("commons", xp_commons, slots_used), AT("commons", xp_commons, entries_used),
        {"commons.members", XP_COMMONS_MEMBERS}, {"commons.holders", XP_COMMONS_HOLDERS},
        {"commons.opens", XP_COMMONS_OPENS}, {"commons.slots", XP_COMMONS_SLOTS}, {"commons.size", XP_COMMONS_SIZE},
        {"commons.life", XP_LIFE_BYTE}, {"commons.reap", XP_REAP_BYTE},
        {"commons.member_count", XP_MEMBERS}, {"commons.slot_count", XP_SLOTS},
        {"holders.size", XP_MEMBERS / 8},
        AT("member", xp_member, state), AT("member", xp_member, pid), AT("member", xp_member, pid_namespace),
        {"member.attached", offsetof(xp_member, attached_ns)}, {"member.size", sizeof(xp_member)},
        AT("slot", xp_words, value), AT("slot", xp_words, pending), AT("slot", xp_words, lost),
        AT("slot", xp_words, orphan), AT("slot", xp_words, seq), AT("slot", xp_words, waiters),
        AT("slot", xp_words, async_waiters), AT("slot", xp_words, cause), AT("slot", xp_words, blame),
        AT("slot", xp_words, device), AT("slot", xp_words, guards), AT("slot", xp_words, facts),
        AT("slot", xp_words, attached), {"slot.size", sizeof(xp_words)},
        AT("request", xp_request, magic), AT("request", xp_request, op), AT("request", xp_request, cookie),
        AT("request", xp_request, entry), AT("request", xp_request, first), AT("request", xp_request, generation),
        AT("request", xp_request, nonce), {"request.size", sizeof(xp_request)},
        AT("reply", xp_reply, magic), AT("reply", xp_reply, status), AT("reply", xp_reply, count),
        AT("reply", xp_reply, total), {"reply.size", sizeof(xp_reply)},
#undef AT
    };
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < sizeof items / sizeof *items; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(items[i].value);
        if (value == NULL || PyDict_SetItemString(dict, items[i].name, value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    int rc = dict ? PyModule_AddObjectRef(module, "LAYOUT", dict) : -1;
    Py_XDECREF(dict);
    return rc;
}

static int module_exec(PyObject *module)
{
    if (add_layout(module) < 0 || xp_init_process(module) < 0 || xp_init_memory(module) < 0 ||
        xp_init_span(module) < 0 || xp_init_dlpack(module) < 0 || xp_init_domain(module) < 0 ||
        xp_init_peer(module) < 0 || xp_init_slot(module) < 0 || xp_init_lane(module) < 0 ||
        xp_init_warden(module) < 0 || xp_init_serve(module) < 0)
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
    return 0;
}

static int module_clear(PyObject *module)
{
    xp_types *s = xp_types_of(module);
    Py_CLEAR(s->fields);
    Py_CLEAR(s->lease);
    Py_CLEAR(s->mapping);
    Py_CLEAR(s->span);
    Py_CLEAR(s->range_name);
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
