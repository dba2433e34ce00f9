/* The module: combines the parts, and gives Python the layout and the numbers of the protocol. */
#include "kinds.h"
#include "meeting.h"

#include "../../engine/channel.h"
#include "../../engine/queue.h"

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
    FIELD("message", xp_message, magic), FIELD("message", xp_message, version), FIELD("message", xp_message, reserved0),
    FIELD("message", xp_message, length), FIELD("message", xp_message, memory), FIELD("message", xp_message, events),
    FIELD("message", xp_message, arrays), FIELD("message", xp_message, steps),
    FIELD("message", xp_message, text_nbytes), FIELD("message", xp_message, reserved1),
    FIELD("message", xp_message, copied),
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
    FIELD("commons", xp_commons, slots_used), FIELD("commons", xp_commons, entries_used), FIELD("commons", xp_commons, users_used),
    FIELD("member", xp_member, state), FIELD("member", xp_member, pid), FIELD("member", xp_member, pid_namespace),
    FIELD("member", xp_member, attached_ns), FIELD("member", xp_member, text),
    FIELD("slot", xp_words, value), FIELD("slot", xp_words, pending), FIELD("slot", xp_words, lost),
    FIELD("slot", xp_words, roster), FIELD("slot", xp_words, seq), FIELD("slot", xp_words, waiters),
    FIELD("slot", xp_words, async_waiters), FIELD("slot", xp_words, cause), FIELD("slot", xp_words, blame),
    FIELD("slot", xp_words, device), FIELD("slot", xp_words, guards), FIELD("slot", xp_words, facts),
    FIELD("slot", xp_words, attached), FIELD("roles", xp_roles, signallers),
    FIELD("roles", xp_roles, candidates),
    FIELD("opens", xp_opens, left), FIELD("opens", xp_opens, marks), FIELD("opens", xp_opens, renewed),
    FIELD("label", xp_label, generation), FIELD("label", xp_label, text), 
    FIELD("name_file", xp_name_file, version), FIELD("name_file", xp_name_file, pid), FIELD("name_file", xp_name_file, place),
    FIELD("name_file", xp_name_file, kind), FIELD("name_file", xp_name_file, generation), FIELD("name_file", xp_name_file, id),
    FIELD("geometry", xp_geometry, nbytes), FIELD("geometry", xp_geometry, slots), FIELD("geometry", xp_geometry, spare),
    FIELD("geometry", xp_geometry, writers), FIELD("geometry", xp_geometry, history),
    FIELD("geometry", xp_geometry, redeliver), FIELD("geometry", xp_geometry, on_full),
    FIELD("geometry", xp_geometry, on_no_readers),
    FIELD("geometry", xp_geometry, meta_nbytes), FIELD("geometry", xp_geometry, text_nbytes),
    FIELD("geometry", xp_geometry, device), FIELD("geometry", xp_geometry, ends),
    FIELD("request", xp_request, magic), FIELD("request", xp_request, op), FIELD("request", xp_request, cookie),
    FIELD("wanted", xp_wanted, entry), FIELD("wanted", xp_wanted, first), FIELD("wanted", xp_wanted, generation),
    FIELD("wanted", xp_wanted, nonce),
    FIELD("reply", xp_reply, magic),
    FIELD("given", xp_given, status), FIELD("given", xp_given, count), FIELD("given", xp_given, total),
};

typedef struct {
    const char *name;
    long long value;
} number;

/* Positions and sizes that belong to no field. */
static const number places[] = {
    {"handle.size", sizeof(xp_handle)},
    {"table.devices", XP_TABLE_DEVICES}, {"table.header", XP_TABLE_HEADER}, {"table.entries", XP_ENTRIES},
    {"table.deadlines", XP_TABLE_DEADLINES}, {"table.labels", XP_TABLE_LABELS}, {"name_file.records", XP_NAME_RECORDS},
    {"geometry.size", sizeof(xp_geometry)}, {"table.size", XP_TABLE_SIZE}, {"device.size", sizeof(xp_device)}, {"entry.size", sizeof(xp_entry)},
    {"commons.members", XP_COMMONS_MEMBERS}, {"commons.holders", XP_COMMONS_HOLDERS},
    {"commons.opens", XP_COMMONS_OPENS}, {"commons.roles", XP_COMMONS_ROLES}, {"commons.pickles", XP_COMMONS_PICKLES}, {"commons.slots", XP_COMMONS_SLOTS}, {"commons.users", XP_COMMONS_USERS},
    {"commons.size", XP_COMMONS_SIZE},
    {"commons.life", XP_LIFE_BYTE}, {"commons.reap", XP_REAP_BYTE},
    {"commons.member_count", XP_MEMBERS}, {"commons.slot_count", XP_SLOTS}, {"holders.size", XP_MEMBERS / 8},
    {"member.size", sizeof(xp_member)}, {"slot.size", sizeof(xp_words)},
    {"request.wanted", offsetof(xp_request, wanted)}, {"wanted.size", sizeof(xp_wanted)},
    {"reply.given", offsetof(xp_reply, given)}, {"given.size", sizeof(xp_given)}, {"reply.size", sizeof(xp_reply)},
};

static const number constants[] = {
    {"VERSION", XP_VERSION}, {"MESSAGE_VERSION", XP_MESSAGE_VERSION}, {"MESSAGE_MOST", XP_MESSAGE_MOST},
    {"ARRAY_DIMS", XP_ARRAY_DIMS},
    {"CAUSE_DEATH", XP_CAUSE_DEATH}, {"CAUSE_QUEUE", XP_CAUSE_QUEUE}, {"CAUSE_EXIT", XP_CAUSE_EXIT}, {"CAUSE_ABANDONED", XP_CAUSE_ABANDONED},
    {"CAUSE_UNOPENED", XP_CAUSE_UNOPENED},
    {"REASON_PUT", XP_REASON_PUT}, {"REASON_FREED", XP_REASON_FREED}, {"REASON_OPENS", XP_REASON_OPENS},
    {"REASON_TTL", XP_REASON_TTL}, {"REASON_PICKLE", XP_REASON_PICKLE},
    {"ENTRY_READ_ONLY", XP_ENTRY_READ_ONLY}, {"ENTRY_COUNTED", XP_ENTRY_COUNTED},
    {"ENTRY_ON_DEMAND", XP_ENTRY_ON_DEMAND}, {"ENTRY_PICKLED", XP_ENTRY_PICKLED},
    {"ENTRY_FORM_BIT", XP_ENTRY_FORM_BIT}, {"ENTRY_FORM", XP_ENTRY_FORM}, {"ENTRY_FDS", XP_ENTRY_FDS},
    {"KIND_MEMORY", XP_KIND_MEMORY}, {"KIND_PHYSICAL_MEMORY", XP_KIND_PHYSICAL_MEMORY}, {"KIND_EVENT", XP_KIND_EVENT},
    {"KEY_NBYTES", XP_KEY_NBYTES}, {"KEY_GOOD", XP_KEY_GOOD}, {"KEY_UNREADABLE", XP_KEY_UNREADABLE},
    {"KEY_NO_FILE", XP_KEY_NO_FILE}, {"KEY_OTHER_USER", XP_KEY_OTHER_USER}, {"KEY_OPEN_TO_OTHERS", XP_KEY_OPEN_TO_OTHERS},
    {"OP_HELLO", XP_OP_HELLO}, {"OP_FDS", XP_OP_FDS}, {"FDS_AT_ONCE", XP_FDS_AT_ONCE},
    {"STATUS_OK", XP_STATUS_OK}, {"STATUS_MALFORMED", XP_STATUS_MALFORMED},
    {"STATUS_OTHER_USER", XP_STATUS_OTHER_USER}, {"STATUS_NOT_LIVE", XP_STATUS_NOT_LIVE},
    {"STATUS_BUSY", XP_STATUS_BUSY}, {"STATUS_DRIVER_ERROR", XP_STATUS_DRIVER_ERROR},
#define REFUSAL(name) {"REFUSED_" #name, XP_REFUSED_##name},
    XP_EVERY_REFUSAL(REFUSAL)
#undef REFUSAL
#define FLAW(name) {"FLAW_" #name, XP_FLAW_##name},
    XP_EVERY_FLAW(FLAW)
#undef FLAW
};

/* Attributes of the module */
static const number attributes[] = {
    {"LEAST_ADDRESS", XP_LEAST_ADDRESS}, {"KINDS_MOST", XP_KINDS_MOST},
    {"PENDING", XP_PENDING}, {"DONE", XP_DONE}, {"LOST", XP_LOST},
    {"CAPTURED", XP_CODE_CAPTURED}, {"NOT_HELD", XP_CODE_NOT_HELD}, {"SYSTEM", XP_CODE_SYSTEM},
};

static const struct {
    const char *name, *value;
} magics[] = {
    {"handle", XP_HANDLE_MAGIC}, {"message", XP_MESSAGE_MAGIC}, {"table", XP_TABLE_MAGIC}, {"commons", XP_COMMONS_MAGIC},
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

static int fill_numbers(PyObject *dict, const number *numbers, size_t count)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = put(dict, numbers[i].name, PyLong_FromLongLong(numbers[i].value));
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
    return rc ? rc : fill_numbers(layout, places, COUNT(places));
}

static int fill_constants(PyObject *dict) { return fill_numbers(dict, constants, COUNT(constants)); }

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

#define PART(name) xp_init_##name,
static int (*const parts[])(PyObject *module) = {XP_EVERY_PART(PART)};

static int module_exec(PyObject *module)
{
    int rc = 0;
    if (!xp_types_begin(xp_types_of(module)) || fill_numbers(PyModule_GetDict(module), attributes, COUNT(attributes)) < 0 ||
        add_dict(module, "STRUCTS", fill_structs) < 0 || add_dict(module, "LAYOUT", fill_layout) < 0 ||
        add_dict(module, "CONSTANTS", fill_constants) < 0 || add_dict(module, "MAGICS", fill_magics) < 0)
        return -1;
    for (size_t i = 0; rc == 0 && i < COUNT(parts); i++)
        rc = parts[i](module);
    return rc;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* shared C state has mutexes of its own */
#endif
    {0, NULL},
};

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    return xp_types_visit(xp_types_of(module), visit, arg);
}

static int module_clear(PyObject *module)
{
    xp_types_clear(xp_types_of(module));
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
