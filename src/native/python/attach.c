/* HandOver.attach: see hand_over.c. */
#include "dlpack.h"
#include "hand_over.h"

static bool of_boot(const xp_handle *h, const char *boot) { return memcmp(h->boot_id, boot, sizeof h->boot_id) == 0; }

static PyObject *key_of(const xp_handle *h, PyObject *opener)
{
    PyObject *items[] = {PyBytes_FromStringAndSize((const char *)h->cookie, sizeof h->cookie),
                         PyLong_FromUnsignedLongLong(h->object), Py_NewRef(opener),
                         PyLong_FromUnsignedLong(h->flags & (XP_ENTRY_READ_ONLY | XP_ENTRY_PICKLED))};
    return plain_tuple(4, items);
}

/* What has arrived, and where it belongs. */
typedef struct {
    const xp_handle *h;
    PyObject *memory;                    /* the handle itself */
    PyObject *opener, *device, *context; /* how and where it is opened */
    PyObject *node, *peers, *met, *cache, *key, *peer;
    PyObject *decided; /* keeps the opener, the device and the context */
} arrival;

/* How handles of that device are opened, where one has been opened before. False: see `declined`. */
static bool decide(const xp_hand_over *self, arrival *a)
{
    PyObject *names = PyBytes_FromStringAndSize((const char *)a->h->backend,
                                                sizeof a->h->backend + sizeof a->h->device_uuid);
    Py_CLEAR(a->decided);
    a->decided = names ? found_in(self->kit[K_decided], names) : NULL;
    if (a->decided) {
        a->opener = PyTuple_GetItem(a->decided, 0);
        a->device = PyTuple_GetItem(a->decided, 1);
        a->context = PyTuple_GetItem(a->decided, 2);
    }
    Py_XDECREF(names);
    return a->decided != NULL;
}

/* --- what is not open yet ----------------------------------------------------------------------------------------- */

/* Whether Python has to look first: at the exporter's device, or at what was kept for a moment when it was closed. */
static bool has_more_to_ask(const xp_hand_over *self, const arrival *a, PyObject *room)
{
    PyObject *admit = READ(a->opener, Opener, admit);
    PyObject *kept = admit == Py_None && room != Py_None ? READ(a->peers, Peers, kept) : NULL;
    PyObject *items = kept ? GET(kept, _items) : NULL, *item = items ? found_in(items, a->key) : NULL;
    bool more = admit != Py_None || item || PyErr_Occurred();
    Py_XDECREF(admit);
    Py_XDECREF(kept);
    Py_XDECREF(items);
    Py_XDECREF(item);
    return more;
}

/* Whether another thread makes what has the key, alone or with others. With the lock of the peers. */
static bool is_taken(const xp_hand_over *self, const arrival *a)
{
    PyObject *turns = READ(a->peers, Peers, _turns), *data = turns ? GET(turns, data) : NULL;
    PyObject *together = data ? READ(a->peers, Peers, _together) : NULL, *turn = data ? found_in(data, a->key) : NULL;
    bool taken = together == NULL || turn || PyErr_Occurred();
    for (Py_ssize_t i = 0; !taken && i < PyTuple_Size(together); i++) {
        PyObject *each = PyObject_CallNoArgs(PyTuple_GetItem(together, i));
        taken = each != Py_None;
        Py_XDECREF(each);
    }
    Py_XDECREF(turns);
    Py_XDECREF(data);
    Py_XDECREF(together);
    Py_XDECREF(turn);
    return taken;
}

/* A turn of our own. Those who want the same wait for it, and find it over then. NULL: see `declined`. */
static PyObject *take_turn(const xp_hand_over *self, const arrival *a, PyObject *opening)
{
    PyObject *lock = READ(a->peers, Peers, _lock), *own = CALL(rlock, NULL), *found = NULL;
    PyObject *none = own ? PyFrozenSet_New(NULL) : NULL, *held = none ? METHOD(own, acquire) : NULL;
    PyObject *turn = held ? PyType_GenericAlloc(CLASS(Turn), 0) : NULL, *locked = NULL;
    if (turn && WRITE(turn, Turn, keys, none) && WRITE(turn, Turn, lock, own) && WRITE(turn, Turn, over, Py_False) &&
        WRITE(turn, Turn, refusal, Py_None) && lock && (locked = METHOD(lock, acquire))) {
        if (!is_taken(self, a) && (found = METHOD(opening, setdefault, a->key, turn)) && found != turn)
            Py_CLEAR(found);
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *released = METHOD(lock, release);
        Py_XDECREF(released);
        PyErr_Restore(type, value, trace);
    }
    PyObject *all[] = {lock, own, none, held, turn, locked};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return found;
}

/* The error that is set stays. */
static void end_turn(const xp_hand_over *self, const arrival *a, PyObject *opening, PyObject *turn)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *lock = READ(turn, Turn, lock);
    bool good = lock && WRITE(turn, Turn, over, Py_True) && PyObject_DelItem(opening, a->key) == 0;
    PyObject *released = good ? METHOD(lock, release) : NULL;
    if (released == NULL)
        PyErr_WriteUnraisable(turn);
    Py_XDECREF(lock);
    Py_XDECREF(released);
    PyErr_Restore(type, value, trace);
}

/* What opens without Python here; NULL with or without an exception: nothing does. The adapter is asked once. */
static PyObject *importer_of(const xp_hand_over *self, const arrival *a)
{
    PyObject *importer = READ(a->opener, Opener, importer);
    if (importer != Py_None)
        return importer; /* False: nothing */
    PyObject *adapter = READ(a->device, Device, _adapter), *info = READ(a->device, Device, _info);
    Py_DECREF(importer);
    importer = adapter && info ? METHOD(adapter, importer, info) : NULL;
    if (importer && !WRITE(a->opener, Opener, importer, importer == Py_None ? Py_False : importer))
        Py_CLEAR(importer);
    Py_XDECREF(adapter);
    Py_XDECREF(info);
    return importer;
}

/* The driver's memory; NULL: by the adapter, in Python, unless it was interrupted. */
static PyObject *import_natively(const xp_hand_over *self, const xp_types *types, const arrival *a, const xp_opened *o)
{
    PyObject *importer = o->mapping == Py_None && o->e.fd_count == 0 ? importer_of(self, a) : NULL;
    PyObject *driver = importer ? xp_import(types, importer, o) : NULL;
    Py_XDECREF(importer);
    if (driver == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    return driver;
}

/* The same by the adapter, in Python. The fds that it did not take are closed. */
static PyObject *driver_memory(const xp_hand_over *self, const arrival *a, const xp_opened *o)
{
    const xp_entry *e = &o->e;
    PyObject *form = PyTuple_GetItem(self->kit[K_forms], (e->flags & XP_ENTRY_FORM) >> XP_ENTRY_FORM_BIT);
    PyObject *items[] = {PyLong_FromUnsignedLongLong(e->nbytes), PyLong_FromUnsignedLongLong(e->exposed_nbytes),
                         PyBytes_FromStringAndSize((const char *)e->payload, e->payload_nbytes), Py_NewRef(o->fds),
                         PyBool_FromLong(e->flags & XP_ENTRY_READ_ONLY), Py_NewRef(o->mapping), Py_XNewRef(form),
                         PyLong_FromUnsignedLongLong(e->offset), Py_NewRef(Py_None), Py_NewRef(Py_False)};
    PyObject *what = named_tuple(CLASS(Import), 10, items), *adapter = READ(a->device, Device, _adapter);
    PyObject *info = READ(a->device, Device, _info), *type, *value, *trace;
    PyObject *driver = what && adapter && info ? METHOD(adapter, import_memory, info, what) : NULL;
    PyErr_Fetch(&type, &value, &trace);
    for (Py_ssize_t i = 0; i < PyList_Size(o->fds); i++) {
        PyObject *closed = METHOD(PyList_GetItem(o->fds, i), close);
        Py_XDECREF(closed);
    }
    PyErr_Restore(type, value, trace);
    Py_XDECREF(what);
    Py_XDECREF(adapter);
    Py_XDECREF(info);
    return driver;
}

/* An End; takes no reference over. */
static PyObject *new_end(const xp_hand_over *self, PyObject *forget, PyObject *key, PyObject *release,
                         PyObject *arguments, PyObject *forks)
{
    PyObject *forgets = PyTuple_Pack(2, forget, key), *end = forgets ? PyType_GenericAlloc(CLASS(End), 0) : NULL;
    if (end && !(WRITE(end, End, forget, forgets) && WRITE(end, End, keep, Py_None) &&
                 WRITE(end, End, _release, release) && WRITE(end, End, _arguments, arguments) &&
                 WRITE(end, End, _forks, forks)))
        Py_CLEAR(end);
    Py_XDECREF(forgets);
    return end;
}

/* The allocation of what was opened: what `Opener.make` makes of it. `forget`: called with the key when it has died. */
static PyObject *imported(const xp_hand_over *self, const xp_types *types, const arrival *a, const xp_opened *o,
                          PyObject *forget)
{
    PyObject *forks = PyLong_FromUnsignedLong(XP_RELAXED(&xp_fork_count)), *zero = PyLong_FromLong(0);
    PyObject *none = PyTuple_New(0), *earlier = PyDict_New(), *end = NULL, *made = NULL;
    bool good = forks && zero && none && earlier;
    PyObject *driver = good ? import_natively(self, types, a, o) : NULL;
    if (good && driver == NULL && !PyErr_Occurred())
        driver = driver_memory(self, a, o);
    PyObject *release = driver ? GET(driver, release) : NULL;
    PyObject *address = release ? GET(driver, address) : NULL, *nbytes = address ? GET(driver, nbytes) : NULL;
    PyObject *accessible = nbytes ? GET(driver, host_accessible) : NULL;
    if (accessible)
        end = new_end(self, forget, a->key, release, none, forks);
    if (end)
        made = PyType_GenericAlloc(CLASS(Allocation), 0);
    if (made &&
        !(WRITE(made, Allocation, device, a->device) && WRITE(made, Allocation, driver, driver) &&
          WRITE(made, Allocation, forks, forks) && WRITE(made, Allocation, _end, end) &&
          WRITE(made, Allocation, kind, self->names[N_device]) && WRITE(made, Allocation, address, address) &&
          WRITE(made, Allocation, nbytes, nbytes) && WRITE(made, Allocation, host_accessible, accessible) &&
          WRITE(made, Allocation, imported, Py_True) && WRITE(made, Allocation, foreign, Py_False) &&
          WRITE(made, Allocation, source, Py_None) && WRITE(made, Allocation, prepared, Py_None) &&
          WRITE(made, Allocation, _handle, a->memory) && WRITE(made, Allocation, _earlier, earlier) &&
          WRITE(made, Allocation, _serial, zero) && WRITE(made, Allocation, _name, Py_None)))
        Py_CLEAR(made);
    if (driver && end == NULL) { /* nobody else releases it */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *released = METHOD(driver, release);
        if (released == NULL)
            PyErr_WriteUnraisable(driver);
        Py_XDECREF(released);
        PyErr_Restore(type, value, trace);
    }
    PyObject *all[] = {driver, forks, zero, none, earlier, release, address, nbytes, accessible, end};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return made;
}

/* Whether the room takes anything. -1 with an exception set */
static int prepare(const xp_hand_over *self, PyObject *room)
{
    PyObject *most = GET(room, most_nbytes);
    int rc = most ? PyObject_IsTrue(most) : -1;
    Py_XDECREF(most);
    if (rc == 0) {
        PyObject *prepared = METHOD(room, prepare);
        rc = prepared ? PyObject_IsTrue(prepared) : -1;
        Py_XDECREF(prepared);
    }
    return rc;
}

/* Have it kept for a moment when it is closed, as `_remember` does. */
static bool keep_later(const xp_hand_over *self, const arrival *a, PyObject *made, PyObject *room)
{
    PyObject *driver = READ(made, Allocation, driver), *keepable = driver ? GET(driver, keepable) : NULL;
    int rc = keepable ? PyObject_IsTrue(keepable) : -1;
    if (rc > 0)
        rc = prepare(self, room);
    if (rc > 0) {
        PyObject *end = READ(made, Allocation, _end), *nbytes = READ(made, Allocation, nbytes);
        PyObject *kind = READ(made, Allocation, kind), *kept = READ(a->peers, Peers, kept);
        PyObject *reopen = kind ? CALL(partial, self->kit[K_reopened], a->device, driver, kind) : NULL;
        PyObject *method = kept ? GET(kept, keep) : NULL, *keep = NULL;
        if (end && nbytes && reopen && method)
            keep = CALL(partial, method, a->key, PyTuple_GetItem(a->key, 0), nbytes, room, reopen);
        rc = keep && WRITE(end, End, keep, keep) ? 1 : -1;
        PyObject *all[] = {end, nbytes, kind, kept, reopen, method, keep};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            Py_XDECREF(all[i]);
    }
    Py_XDECREF(driver);
    Py_XDECREF(keepable);
    return rc >= 0;
}

/* What the cache has under the key from now on: what was made, or what another thread made first. */
static PyObject *remember(const xp_hand_over *self, const arrival *a, PyObject *key, PyObject *made, PyObject *room)
{
    if (room != Py_None && !keep_later(self, a, made, room))
        return NULL;
    PyObject *own = PyWeakref_NewRef(made, NULL), *found = own ? METHOD(a->cache, setdefault, key, own) : NULL;
    PyObject *kept = found == NULL ? NULL
                     : found == own ? Py_NewRef(made)
                                    : METHOD(a->peers, _remember, key, made, room);
    Py_XDECREF(own);
    Py_XDECREF(found);
    return kept;
}

/* As the property's setter does it. */
static bool set_handle(const xp_hand_over *self, const xp_types *types, const xp_handle *h, PyObject *memory,
                       PyObject *allocation)
{
    PyObject *before = READ(allocation, Allocation, _handle);
    PyObject *fields = before && Py_TYPE(before) == CLASS(Handle) ? READ(before, Handle, _fields) : NULL;
    const xp_handle *old = fields ? xp_fields_of(types, fields) : NULL;
    bool same = old && (h->flags & XP_ENTRY_PICKLED ? old->generation == h->generation
                                                    : old->offset == h->offset && old->nbytes == h->nbytes);
    Py_XDECREF(fields);
    Py_XDECREF(before);
    return same ? WRITE(allocation, Allocation, _handle, memory) : before && SET(allocation, handle, memory);
}

/* (the allocation, the hold); NULL: see `declined`. In a turn of our own, or where it comes mapped: then two threads may
 * open it, and one of the mappings is kept. */
static PyObject *make_new(const xp_hand_over *self, const xp_types *types, const arrival *a, bool maps, PyObject *room)
{
    PyObject *table = READ(a->peer, Peer, table), *found = NULL, *forget = NULL, *made = NULL, *kept = NULL;
    xp_opened o = {.lease = NULL};
    if (table && xp_open_entry(types, table, a->h, a->peer, maps, &o))
        forget = GET(a->peers, forget);
    if (forget)
        made = imported(self, types, a, &o, forget);
    if (made && (o.mapping != Py_None || xp_still_live(types, table, a->h))) /* else a driver may have taken it for */
        kept = remember(self, a, a->key, made, room);                       /* something that is there now */
    if (kept && (kept == made || set_handle(self, types, a->h, a->memory, kept)))
        found = PyTuple_Pack(2, kept, o.lease);
    xp_close_opened(&o);
    Py_XDECREF(table);
    Py_XDECREF(forget);
    Py_XDECREF(made);
    Py_XDECREF(kept);
    return found;
}

/* The same. `tried` stays false where Python's `acquire_known` knows more. */
static PyObject *open_new(const xp_hand_over *self, const xp_types *types, const arrival *a, bool *tried)
{
    PyObject *room = READ(a->opener, Opener, room), *maps = READ(a->opener, Opener, maps), *found = NULL;
    PyObject *opening = READ(a->peers, Peers, _opening), *turn = NULL, *known = NULL;
    if (room && maps && opening && !has_more_to_ask(self, a, room)) {
        bool alone = maps != Py_True || a->h->flags & XP_ENTRY_PICKLED;
        if (alone && (turn = take_turn(self, a, opening)))
            known = found_in(a->cache, a->key); /* another thread may have been first */
        if ((!alone || (turn && known == NULL)) && !PyErr_Occurred()) {
            *tried = true;
            found = make_new(self, types, a, !alone, room);
        }
        if (turn)
            end_turn(self, a, opening, turn);
    }
    PyObject *all[] = {room, maps, opening, turn, known};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return found;
}

/* --- what is open already ----------------------------------------------------------------------------------------- */

/* (the allocation, the hold) of what is open already, by a weak reference to it. The hold is first: a handle that is
 * refused renews nothing. NULL: see `declined`. */
static PyObject *open_again(const xp_hand_over *self, const xp_types *types, const arrival *a, PyObject *known)
{
    uint32_t slot;
    PyObject *table = READ(a->peer, Peer, table);
    PyObject *lease = table ? xp_hold_live(types, table, a->h, a->peer, &slot) : NULL;
    PyObject *allocation = lease ? PyObject_CallNoArgs(known) : NULL, *found = NULL;
    if (allocation && allocation != Py_None && set_handle(self, types, a->h, a->memory, allocation))
        found = PyTuple_Pack(2, allocation, lease);
    Py_XDECREF(table);
    Py_XDECREF(lease);
    Py_XDECREF(allocation);
    return found;
}

/* --- which it is -------------------------------------------------------------------------------------------------- */

/* What `acquire_known` returns. Where that fails, Python tries again: it may find room, or another way. */
static PyObject *acquire_known(const xp_hand_over *self, const arrival *a)
{
    PyObject *acquired = METHOD(a->peers, acquire_known, a->memory, a->key, a->opener);
    if (acquired == NULL && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    if (acquired && !(PyTuple_Check(acquired) && PyTuple_Size(acquired) == 2 &&
                      SET(PyTuple_GetItem(acquired, 0), handle, a->memory)))
        Py_CLEAR(acquired); /* None */
    return acquired;
}

/* (the allocation, the hold) from an exporter that this process has met; NULL: see `declined`. */
static PyObject *acquire_from(const xp_hand_over *self, const xp_types *types, const arrival *a)
{
    PyObject *known = found_in(a->cache, a->key), *acquired = NULL;
    bool tried = false;
    if (known)
        acquired = open_again(self, types, a, known);
    else if (!PyErr_Occurred())
        acquired = open_new(self, types, a, &tried);
    Py_XDECREF(known);
    if (acquired == NULL && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception))) {
        PyErr_Clear();
        if (!tried)
            acquired = acquire_known(self, a);
    }
    return acquired;
}

/* The same from an exporter that it has not met. Where nothing comes of it, nothing of the acquaintance stays. */
static PyObject *acquire_first(const xp_hand_over *self, const xp_types *types, arrival *a)
{
    PyObject *acquired = NULL;
    a->peer = METHOD(a->node, meet, a->memory);
    if (a->peer && Py_TYPE(a->peer) == CLASS(Peer)) {
        acquired = acquire_from(self, types, a);
        if (acquired == NULL) {
            PyObject *type, *value, *trace; /* of an interrupt */
            PyErr_Fetch(&type, &value, &trace);
            PyObject *left = METHOD(a->peers, _discard, PyTuple_GetItem(a->key, 0));
            if (left == NULL && type)
                PyErr_WriteUnraisable(a->peers);
            if (type)
                PyErr_Restore(type, value, trace);
            Py_XDECREF(left);
        }
    }
    return acquired;
}

/* (the allocation, the hold); NULL: see `declined`. */
static PyObject *acquire(const xp_hand_over *self, const xp_types *types, arrival *a)
{
    a->key = key_of(a->h, a->opener);
    a->met = READ(a->peers, Peers, _peers);
    a->cache = READ(a->peers, Peers, _cache);
    bool good = a->key && a->met && a->cache;
    PyObject *swept = good && PyDict_Size(a->met) > 1 ? METHOD(a->peers, sweep) : Py_NewRef(Py_None), *acquired = NULL;
    if (good && swept) {
        a->peer = found_in(a->met, PyTuple_GetItem(a->key, 0));
        if (a->peer)
            acquired = acquire_from(self, types, a);
        else if (!PyErr_Occurred())
            acquired = acquire_first(self, types, a);
    }
    Py_XDECREF(swept);
    return acquired;
}

/* Whether the range lies in what is mapped; -1 with an exception set. */
static int lies_in(const xp_hand_over *self, const xp_handle *h, PyObject *allocation)
{
    uint64_t total;
    PyObject *nbytes = READ(allocation, Allocation, nbytes);
    int rc = nbytes ? xp_as_u64(nbytes, &total) : -1;
    Py_XDECREF(nbytes);
    return rc < 0 ? -1 : h->offset <= total && h->nbytes <= total - h->offset;
}

/* What is known of its dtype: (dtype, item size, DLPack's type or None). NULL: see `declined`. */
static PyObject *known_dtype(const xp_hand_over *self, const xp_array_parts *a)
{
    PyObject *text = PyBytes_FromStringAndSize((const char *)a->text, a->head.text_nbytes);
    PyObject *known = text ? found_in(self->kit[K_dtypes], text) : NULL;
    uint32_t found;
    if (known && !(xp_as_u32(PyTuple_GetItem(known, 1), &found) == 0 && found == a->head.itemsize))
        Py_CLEAR(known);
    Py_XDECREF(text);
    return known;
}

/* What `decode_dtype` returns. */
static PyObject *dtype_of(const xp_hand_over *self, const xp_array_parts *a)
{
    PyObject *known = known_dtype(self, a), *text = NULL, *itemsize = NULL, *dtype = NULL;
    if (known)
        dtype = Py_NewRef(PyTuple_GetItem(known, 0));
    else if (!PyErr_Occurred() &&
             (text = PyBytes_FromStringAndSize((const char *)a->text, a->head.text_nbytes)) &&
             (itemsize = PyLong_FromUnsignedLong(a->head.itemsize)))
        dtype = CALL(decode_dtype, text, itemsize);
    Py_XDECREF(text);
    Py_XDECREF(known);
    Py_XDECREF(itemsize);
    return dtype;
}

/* --- what its readers wait for ------------------------------------------------------------------------------------ */

/* What `Timeline(device, Slot(domain, index, False), domain)` makes, remembered. */
static PyObject *new_timeline(const xp_hand_over *self, const xp_types *types, const arrival *a, PyObject *domain,
                              uint32_t index, PyObject *key)
{
    PyObject *forks = PyLong_FromUnsignedLong(XP_RELAXED(&xp_fork_count)), *kept = NULL, *made = NULL;
    PyObject *taken = forks ? PyList_New(0) : NULL, *arguments = taken ? PyTuple_Pack(2, domain, taken) : NULL;
    PyObject *forget = arguments ? GET(a->peers, forget) : NULL;
    PyObject *slot = forget ? xp_slot_new(types->slot, domain, index, XP_ONLY_WAITS) : NULL;
    PyObject *end = slot ? new_end(self, forget, key, self->kit[K_release_slot], arguments, forks) : NULL;
    if (end)
        made = PyType_GenericAlloc(CLASS(Timeline), 0);
    if (made && WRITE(made, Timeline, device, a->device) && WRITE(made, Timeline, driver, domain) &&
        WRITE(made, Timeline, forks, forks) && WRITE(made, Timeline, _end, end) && WRITE(made, Timeline, slot, slot) &&
        WRITE(made, Timeline, prepared, Py_None))
        kept = remember(self, a, key, made, Py_None);
    PyObject *all[] = {forks, made, taken, arguments, forget, slot, end};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return kept;
}

/* The timeline of the event in that slot, now or for an earlier open. */
static PyObject *timeline_of(const xp_hand_over *self, const xp_types *types, const arrival *a, uint32_t index)
{
    PyObject *domain = READ(a->peer, Peer, domain), *items[] = {NULL, NULL, NULL}, *found = NULL;
    PyObject *cookie = domain ? GET(a->peer, cookie) : NULL;
    items[0] = cookie;
    items[1] = Py_NewRef(self->names[N_slot]);
    items[2] = PyLong_FromUnsignedLong(index);
    PyObject *key = plain_tuple(3, items), *known = key ? found_in(a->cache, key) : NULL;
    if (known)
        found = PyObject_CallNoArgs(known);
    if (found == Py_None)
        Py_CLEAR(found);
    if (key && found == NULL && !PyErr_Occurred())
        found = new_timeline(self, types, a, domain, index, key);
    Py_XDECREF(domain);
    Py_XDECREF(key);
    Py_XDECREF(known);
    return found;
}

/* The order after an event that has yet to come. `on`: see `opened_on`. */
static PyObject *new_order(const xp_hand_over *self, const xp_types *types, const xp_array_parts *p, const arrival *a,
                           PyObject *on, PyObject *lease, uint32_t index)
{
    PyObject *timeline = timeline_of(self, types, a, index), *order = NULL;
    if (timeline) {
        PyObject *items[] = {Py_NewRef(timeline), Py_NewRef(a->device), Py_NewRef(PyTuple_GetItem(on, 1)),
                             Py_NewRef(Py_False), Py_NewRef(Py_None), new_handle(self, types, &p->event),
                             Py_NewRef(lease), Py_NewRef(PyTuple_GetItem(on, 2)), Py_NewRef(PyTuple_GetItem(on, 3)),
                             Py_NewRef(Py_False), Py_NewRef(Py_None)};
        PyObject *event = named_tuple(CLASS(Opened), 11, items), *point = PyLong_FromUnsignedLongLong(p->head.point);
        if (event && point)
            order = PyType_GenericAlloc(CLASS(Order), 0);
        if (order && !(WRITE(order, Order, _event, event) && WRITE(order, Order, _point, point)))
            Py_CLEAR(order);
        Py_XDECREF(event);
        Py_XDECREF(point);
    }
    Py_XDECREF(timeline);
    return order;
}

/* What readers have to wait for; None where the content is there: then nothing is opened. NULL: see `declined`. */
static PyObject *order_known(const xp_hand_over *self, const xp_types *types, const xp_array_parts *p, const arrival *a)
{
    const xp_handle *e = &p->event;
    PyObject *id = PyLong_FromVoidPtr(a->device), *on = id ? found_in(self->kit[K_opened_on], id) : NULL;
    bool there = on && PyTuple_GetItem(on, 0) == a->device && !(e->flags & XP_ENTRY_COUNTED) &&
                 memcmp(e->backend, a->h->backend, sizeof e->backend) == 0 &&
                 memcmp(e->device_uuid, a->h->device_uuid, sizeof e->device_uuid) == 0;
    PyObject *table = there ? READ(a->peer, Peer, table) : NULL, *order = NULL; /* the event is of that exporter, too */
    uint32_t index;
    PyObject *lease = table ? xp_hold_live(types, table, e, a->peer, &index) : NULL;
    if (lease && xp_point_done(table, index, p->head.point))
        order = Py_NewRef(Py_None);
    else if (lease && !PyErr_Occurred())
        order = new_order(self, types, p, a, on, lease, index);
    /* Else the slot may be another event's by now. */
    if (order && !(xp_still_live(types, table, e) && xp_count_open(table, e)))
        Py_CLEAR(order);
    Py_XDECREF(id);
    Py_XDECREF(on);
    Py_XDECREF(table);
    Py_XDECREF(lease);
    return order;
}

/* What readers have to wait for, or None. */
static PyObject *order_of(const xp_hand_over *self, const xp_types *types, const xp_array_parts *p, const arrival *a)
{
    if (!p->has_event)
        return Py_NewRef(Py_None);
    PyObject *order = order_known(self, types, p, a);
    if (order || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)))
        return order;
    PyErr_Clear();
    PyObject *event = new_handle(self, types, &p->event), *point = PyLong_FromUnsignedLongLong(p->head.point);
    order = event && point ? CALL(order_of, event, a->device, point) : NULL;
    Py_XDECREF(event);
    Py_XDECREF(point);
    return order;
}

/* The piece of it that the handle names, whoever acquired it. */
static PyObject *range_of(const xp_hand_over *self, const arrival *a, PyObject *acquired)
{
    PyObject *items[] = {Py_NewRef(PyTuple_GetItem(acquired, 0)),
                         PyLong_FromUnsignedLongLong(a->h->offset),
                         PyLong_FromUnsignedLongLong(a->h->nbytes),
                         Py_NewRef(a->device),
                         Py_NewRef(a->context),
                         PyBool_FromLong(a->h->flags & XP_ENTRY_READ_ONLY),
                         Py_NewRef(a->memory),
                         Py_NewRef(PyTuple_GetItem(acquired, 1))};
    return named_tuple(CLASS(Range), 8, items);
}

/* --- the array ---------------------------------------------------------------------------------------------------- */

/* It keeps the message: its handle is made of that when somebody asks. */
static PyObject *new_array(const xp_hand_over *self, const xp_array_parts *a, PyObject *range, PyObject *dtype,
                           PyObject *message, PyObject *order)
{
    PyObject *forks = PyLong_FromUnsignedLong(XP_RELAXED(&xp_fork_count)), *shape = xp_shape(a);
    PyObject *strides = xp_strides(a), *offset = PyLong_FromUnsignedLongLong(a->head.offset);
    PyObject *made = forks && shape && strides && offset ? xp_base_new(CLASS(SharedArray)) : NULL;
    if (made && !(WRITE(made, SharedArray, _held, range) && WRITE(made, SharedArray, _forks, forks) &&
                  WRITE(made, SharedArray, _shape, shape) && WRITE(made, SharedArray, _strides, strides) &&
                  WRITE(made, SharedArray, _offset, offset) && WRITE(made, SharedArray, _dtype, dtype) &&
                  WRITE(made, SharedArray, _pinned, Py_None) && WRITE(made, SharedArray, _handle, message) &&
                  WRITE(made, SharedArray, _order, order) && WRITE(made, SharedArray, _implicit, Py_None)))
        Py_CLEAR(made);
    Py_XDECREF(forks);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(offset);
    return made;
}

/* DLPack's device for memory that this process has of it, where arrays on such devices were made there before. */
static bool dlpack_device(const xp_hand_over *self, const arrival *a, PyObject *allocation, dl_device *on)
{
    PyObject *known = GET(a->device, _dlpacks), *kind = known ? READ(allocation, Allocation, kind) : NULL;
    PyObject *pair = kind ? found_in(known, kind) : NULL; /* its type and number */
    PyObject *started = pair ? found_in(self->kit[K_started], PyTuple_GetItem(pair, 0)) : NULL;
    bool good = started && xp_as_int(PyTuple_GetItem(pair, 0), &on->type) == 0 &&
                xp_as_int(PyTuple_GetItem(pair, 1), &on->id) == 0;
    Py_XDECREF(known);
    Py_XDECREF(kind);
    Py_XDECREF(pair);
    Py_XDECREF(started);
    return good;
}

/* Its tensor, which holds the range. NULL: see `declined`. */
static PyObject *new_tensor(const xp_hand_over *self, const dl_exchange *api, const xp_array_parts *p, const arrival *a,
                            PyObject *allocation, PyObject *range)
{
    int64_t dims[2 * XP_ARRAY_DIMS];
    PyObject *known = known_dtype(self, p), *type = known ? PyTuple_GetItem(known, 2) : Py_None;
    PyObject *address = type != Py_None ? READ(allocation, Allocation, address) : NULL, *tensor = NULL;
    xp_holder *held = NULL;
    int code, bits, lanes;
    uint64_t start;
    dl_device on;
    memcpy(dims, p->dims, 16u * p->head.ndim);
    if (address && xp_as_u64(address, &start) == 0 && dlpack_device(self, a, allocation, &on) &&
        PyArg_ParseTuple(type, "iii", &code, &bits, &lanes) && xp_whole_steps(p->head.ndim, dims, p->head.itemsize) &&
        (held = xp_held_by(range, start + a->h->offset, on)))
        tensor = xp_tensor(api, held, p->head.offset, p->head.ndim, dims,
                           (dl_dtype){(uint8_t)code, (uint8_t)bits, (uint16_t)lanes}, p->head.itemsize);
    if (held)
        xp_let_go(held);
    Py_XDECREF(known);
    Py_XDECREF(address);
    return tensor;
}

/* The array over what was acquired, or the tensor of the exchange's library that it becomes; an array where Python has
 * to make that. */
static PyObject *attached(const xp_hand_over *self, const xp_types *types, const xp_array_parts *p, PyObject *message,
                          const dl_exchange *api, const arrival *a, PyObject *acquired)
{
    int lies = lies_in(self, a->h, PyTuple_GetItem(acquired, 0));
    if (lies <= 0)
        return lies < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *range = range_of(self, a, acquired);
    PyObject *order = range ? order_of(self, types, p, a) : NULL;
    PyObject *array = NULL;
    if (api && api->to_object && order == Py_None && !(a->h->flags & XP_ENTRY_READ_ONLY)) {
        array = new_tensor(self, api, p, a, PyTuple_GetItem(acquired, 0), range);
        if (array == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
            PyErr_Clear(); /* the library's own function says what is wrong */
    }
    PyObject *dtype = order && array == NULL && !PyErr_Occurred() ? dtype_of(self, p) : NULL;
    if (dtype)
        array = new_array(self, p, range, dtype, message, order);
    Py_XDECREF(range);
    Py_XDECREF(order);
    Py_XDECREF(dtype);
    return array;
}

/* `api`: of the library whose array it becomes, or NULL. */
static PyObject *attach(PyObject *object, PyObject *message, const dl_exchange *api)
{
    const xp_hand_over *self = (xp_hand_over *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_key *key = key_if_on(self, types);
    PyObject *boot_id = only(self, K_boot_ids), *node = only(self, K_here);
    char *raw, *boot;
    Py_ssize_t nbytes, boot_nbytes;
    xp_array_parts p;
    if (key == NULL || boot_id == NULL || node == NULL || !PyBytes_CheckExact(message))
        return declined();
    if (PyBytes_AsStringAndSize(message, &raw, &nbytes) < 0 ||
        PyBytes_AsStringAndSize(boot_id, &boot, &boot_nbytes) < 0)
        return NULL;
    if (boot_nbytes != sizeof p.memory.boot_id || !xp_read_array(key, raw, (size_t)nbytes, &p) || !p.fits ||
        (p.memory.flags & (XP_ENTRY_COUNTED | XP_ENTRY_PICKLED)) || !of_boot(&p.memory, boot) ||
        (p.has_event && !of_boot(&p.event, boot)))
        Py_RETURN_NONE;
    arrival a = {.h = &p.memory, .node = node};
    a.memory = decide(self, &a) ? new_handle(self, types, &p.memory) : NULL;
    a.peers = a.memory ? READ(node, Node, peers) : NULL;
    PyObject *acquired = a.peers ? acquire(self, types, &a) : NULL;
    PyObject *array = acquired ? attached(self, types, &p, message, api, &a, acquired) : declined();
    PyObject *all[] = {acquired, a.memory, a.peers, a.met, a.cache, a.key, a.peer, a.decided};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return array;
}

PyObject *xp_over_attach(PyObject *object, PyObject *message) { return attach(object, message, NULL); }

/* attach_as(message, exchange) */
PyObject *xp_over_attach_as(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const dl_exchange *api = xp_arity("attach_as", n, 2, 2) < 0 ? NULL : xp_exchange_of(args[1]);
    return PyErr_Occurred() ? NULL : attach(object, args[0], api);
}

/* --- the memory of trees ------------------------------------------------------------------------------------------ */

/* Whether the handle is of the process and the device that `last` is of. */
static bool like_last(const xp_handle *h, const xp_handle *last)
{
    return last && memcmp(h->cookie, last->cookie, sizeof h->cookie) == 0 &&
           memcmp(h->backend, last->backend, sizeof h->backend + sizeof h->device_uuid) == 0;
}

/* From whom it comes, and how it is opened. False: see `declined`. */
static bool look_up(const xp_hand_over *self, arrival *a)
{
    PyObject *cookie = PyBytes_FromStringAndSize((const char *)a->h->cookie, sizeof a->h->cookie);
    Py_CLEAR(a->peer);
    a->peer = decide(self, a) && cookie ? found_in(a->met, cookie) : NULL;
    Py_XDECREF(cookie);
    return a->peer != NULL;
}

/* NULL: see `declined`. */
static PyObject *open_range(const xp_hand_over *self, const xp_types *types, arrival *a)
{
    a->key = key_of(a->h, a->opener);
    PyObject *acquired = a->key ? acquire_from(self, types, a) : NULL, *range = NULL;
    if (acquired && lies_in(self, a->h, PyTuple_GetItem(acquired, 0)) > 0)
        range = range_of(self, a, acquired);
    Py_CLEAR(a->key);
    Py_XDECREF(acquired);
    return range;
}

/* As `Peers.count` does it. */
static bool count_open(const xp_hand_over *self, const arrival *a)
{
    PyObject *table = READ(a->peer, Peer, table);
    bool good = table && xp_count_open(table, a->h);
    Py_XDECREF(table);
    return good;
}

/* open_all(handles, opened): append the ranges of the first of them, as far as they are of an exporter that this process
 * has met and need no more than that. */
PyObject *xp_over_open_all(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_hand_over *self = (xp_hand_over *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    if (xp_arity("open_all", n, 2, 2) < 0)
        return NULL;
    if (!PyTuple_Check(args[0]) || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "open_all() takes a tuple and a list");
        return NULL;
    }
    PyObject *node = key_if_on(self, types) ? only(self, K_here) : NULL;
    arrival a = {.node = node, .peers = node ? READ(node, Node, peers) : NULL};
    a.met = a.peers ? READ(a.peers, Peers, _peers) : NULL;
    a.cache = a.met ? READ(a.peers, Peers, _cache) : NULL;
    PyObject *swept = a.cache && PyDict_Size(a.met) > 1 ? METHOD(a.peers, sweep) : Py_NewRef(Py_None);
    const xp_handle *last = NULL;
    bool going = a.cache && swept;
    for (Py_ssize_t i = 0; going && i < PyTuple_Size(args[0]); i++) {
        a.memory = PyTuple_GetItem(args[0], i);
        PyObject *fields = Py_TYPE(a.memory) == CLASS(Handle) ? READ(a.memory, Handle, _fields) : NULL, *range = NULL;
        a.h = fields ? xp_fields_of(types, fields) : NULL; /* the handle, which the tuple keeps, keeps them */
        if (a.h && a.h->kind == XP_KIND_MEMORY && !(a.h->flags & XP_ENTRY_COUNTED) &&
            (like_last(a.h, last) || look_up(self, &a)))
            range = open_range(self, types, &a);
        last = a.h;
        going = range && count_open(self, &a) && PyList_Append(args[1], range) == 0;
        Py_XDECREF(fields);
        Py_XDECREF(range);
    }
    PyObject *all[] = {a.peers, a.met, a.cache, a.peer, a.decided, swept};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear(); /* Python's way says what is wrong */
    return declined();
}
