/* The interpreter: the one that runs in this process, or the one for which the package is installed. One library
 * serves all versions of Python, so it is linked with none. The functions that it calls are in the stable ABI, and
 * are looked up. */
#include "parts.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

typedef struct PyObject PyObject;

/* Result, name, parameters, its name in libpython, and whether a version may lack it. */
#define EVERY_FUNCTION(X)                                                                                              \
    X(int, IsInitialized, (void), "Py_IsInitialized", false)                                                           \
    X(void, InitializeEx, (int), "Py_InitializeEx", false)                                                             \
    X(wchar_t *, DecodeLocale, (const char *, size_t *), "Py_DecodeLocale", false)                                     \
    X(void, SetProgramName, (const wchar_t *), "Py_SetProgramName", true)                                              \
    X(int, GILState_Ensure, (void), "PyGILState_Ensure", false)                                                        \
    X(void, GILState_Release, (int), "PyGILState_Release", false)                                                      \
    X(void *, GILState_GetThisThreadState, (void), "PyGILState_GetThisThreadState", false)                             \
    X(void *, SaveThread, (void), "PyEval_SaveThread", false)                                                          \
    X(void, RestoreThread, (void *), "PyEval_RestoreThread", false)                                                    \
    X(void *, ThreadState_GetUnchecked, (void), "_PyThreadState_UncheckedGet", true)                                   \
    X(PyObject *, ImportModule, (const char *), "PyImport_ImportModule", false)                                        \
    X(PyObject *, GetAttrString, (PyObject *, const char *), "PyObject_GetAttrString", false)                          \
    X(PyObject *, CallObject, (PyObject *, PyObject *), "PyObject_CallObject", false)                                  \
    X(PyObject *, SysGetObject, (const char *), "PySys_GetObject", false)                                              \
    X(PyObject *, ListGetItem, (PyObject *, ssize_t), "PyList_GetItem", false)                                         \
    X(ssize_t, ListSize, (PyObject *), "PyList_Size", false)                                                           \
    X(int, ListInsert, (PyObject *, ssize_t, PyObject *), "PyList_Insert", false)                                      \
    X(int, SequenceContains, (PyObject *, PyObject *), "PySequence_Contains", false)                                   \
    X(PyObject *, DecodeFS, (const char *), "PyUnicode_DecodeFSDefault", false)                                        \
    X(PyObject *, TupleNew, (ssize_t), "PyTuple_New", false)                                                           \
    X(int, TupleSetItem, (PyObject *, ssize_t, PyObject *), "PyTuple_SetItem", false)                                  \
    X(PyObject *, FromULL, (unsigned long long), "PyLong_FromUnsignedLongLong", false)                                 \
    X(long, AsLong, (PyObject *), "PyLong_AsLong", false)                                                              \
    X(PyObject *, ErrOccurred, (void), "PyErr_Occurred", false)                                                        \
    X(void, ErrPrint, (void), "PyErr_Print", false)                                                                    \
    X(void, ErrClear, (void), "PyErr_Clear", false)                                                                    \
    X(void, DecRef, (PyObject *), "Py_DecRef", false)

#define POINTER(result, name, parameters, symbol, optional) result(*name) parameters;
#define WANTED(result, name, parameters, symbol, optional) {&py.name, symbol, optional},
static struct {
    EVERY_FUNCTION(POINTER)
} py;

static const struct {
    void *to;
    const char *name;
    bool optional;
} wanted[] = {
    EVERY_FUNCTION(WANTED) {&py.ThreadState_GetUnchecked, "PyThreadState_GetUnchecked", true}, /* from 3.13 on */
};

void xp_log(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "libur_adapter_xpushare: %s\n", text);
}

/* --- which one ---------------------------------------------------------------------------------------------------- */

typedef struct {
    char site[PATH_MAX];       /* the folder that the package lies in */
    char executable[PATH_MAX]; /* or empty */
    char library[PATH_MAX];    /* its libpython: a path, or a name that the linker finds; or empty */
    char wrong[PATH_MAX];     /* why it cannot be started; or empty */
} xp_python;

static bool is_file(const char *path) { return access(path, F_OK) == 0; }

/* Remove the last `parts` of a path. */
static void up(char *path, int parts)
{
    for (; parts; parts--) {
        char *slash = strrchr(path, '/');
        if (slash)
            *slash = 0;
    }
}

/* Returns false if the text does not fit. */
__attribute__((format(printf, 2, 3))) static bool put(char *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(to, PATH_MAX, format, arguments);
    va_end(arguments);
    return length < PATH_MAX;
}

/* A program of the PATH. */
static bool in_path(char *found, const char *name)
{
    const char *path = getenv("PATH");
    for (const char *each = path ? path : "/usr/local/bin:/usr/bin:/bin"; *each;) {
        size_t length = strcspn(each, ":");
        if (snprintf(found, PATH_MAX, "%.*s/%s", (int)length, each, name) < PATH_MAX && access(found, X_OK) == 0)
            return true;
        each += length + (each[length] == ':');
    }
    *found = 0;
    return false;
}

/* Find `python3.11` in …/lib/python3.11/site-packages, or "", and the prefix before it. */
static void version_of_site(const char *site, char *version, char *prefix)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", site);
    up(path, 1);
    const char *name = strrchr(path, '/');
    *version = *prefix = 0;
    if (!name || strncmp(name, "/python", 7) || name[7] < '0' || name[7] > '9')
        return;
    snprintf(version, NAME_MAX, "%s", name + 1);
    up(path, 2);
    snprintf(prefix, PATH_MAX, "%s", path);
}

/* The folder of the program of the interpreter behind an executable. */
static void home_of(const char *executable, char *home, char *version)
{
    char real[PATH_MAX], settings[PATH_MAX], line[PATH_MAX];
    if (!realpath(executable, real))
        snprintf(real, sizeof real, "%s", executable);
    const char *name = strrchr(real, '/');
    if (name && !strncmp(name, "/python", 7) && strchr(name, '.'))
        snprintf(version, NAME_MAX, "%s", name + 1);
    up(real, 1);
    put(home, "%s", real);
    snprintf(line, sizeof line, "%s", executable);
    up(line, 2);
    if (!put(settings, "%s/pyvenv.cfg", line))
        return;
    FILE *file = fopen(settings, "re");
    while (file && fgets(line, sizeof line, file)) {
        char key[64], value[PATH_MAX];
        if (sscanf(line, " %63[a-z] = %4095[^\n]", key, value) == 2 && !strcmp(key, "home"))
            put(home, "%s", value);
    }
    if (file)
        fclose(file);
}

static bool loads(const char *library)
{
    void *opened = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    if (opened)
        dlclose(opened);
    return opened != NULL;
}

static bool find_site(char *site)
{
    Dl_info self;
    if (!dladdr((void *)find_site, &self) || !realpath(self.dli_fname, site))
        return false;
    up(site, 4); /* site/xpushare/ur/loader/this */
    return true;
}

static void find_executable(xp_python *p, const char *version, const char *prefix)
{
    const char *chosen = getenv("XPUSHARE_PYTHON");
    if (chosen && *chosen) {
        if (!is_file(chosen))
            put(p->wrong, "XPUSHARE_PYTHON names %.1000s, which is not a file", chosen);
        put(p->executable, "%s", chosen);
    } else if (!(*version && put(p->executable, "%s/bin/%s", prefix, version) && is_file(p->executable)) &&
               !in_path(p->executable, *version ? version : "python3"))
        put(p->wrong, "no %s is in the PATH: XPUSHARE_PYTHON names an interpreter", *version ? version : "python3");
}

static void find_library(xp_python *p, const char *home, const char *version)
{
    static const char *const places[] = {"/../lib/", "/../lib64/", "/../lib/x86_64-linux-gnu/", "/../lib/aarch64-linux-gnu/"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (put(p->library, "%s%slib%s.so.1.0", home, places[i], version) && is_file(p->library) && loads(p->library))
            return;
    if (put(p->library, "lib%s.so.1.0", version) && loads(p->library))
        return;
    *p->library = 0;
    put(p->wrong,
        "%.1000s has no lib%s.so.1.0, which a program without Python needs (Debian: the package lib%s): install it, or "
        "have XPUSHARE_PYTHON name an interpreter that has one and this package",
        p->executable, version, version);
}

/* Find the interpreter for which the package is installed, and its libpython. */
static bool find(xp_python *p)
{
    char version[NAME_MAX] = "", prefix[PATH_MAX], home[PATH_MAX];
    memset(p, 0, sizeof *p);
    if (!find_site(p->site))
        return put(p->wrong, "this library's own file cannot be found"), false;
    version_of_site(p->site, version, prefix);
    find_executable(p, version, prefix);
    if (!*p->wrong) {
        home_of(p->executable, home, version);
        if (strchr(version, '.'))
            find_library(p, home, version);
        else
            put(p->wrong, "%.1000s does not say its version. It may be a script that starts the real interpreter, as "
                "version managers such as pyenv install. Set XPUSHARE_PYTHON to the path of the real one, which "
                "`python3 -c 'import sys; print(sys.executable)'` prints", p->executable);
    }
    return !*p->wrong;
}

XP_EXPORT void xpushare_ur_interpreter(char *executable, char *library, char *wrong)
{
    xp_python p;
    find(&p);
    memcpy(executable, p.executable, PATH_MAX);
    memcpy(library, p.library, PATH_MAX);
    memcpy(wrong, p.wrong, PATH_MAX);
}

/* --- its life ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static enum { NOT_STARTED, STARTED, FAILED } state;
static int over; /* 0, or the code that every call gets from now on */
static unsigned within; /* how many calls may ask it */
static PyObject **functions, *leaving, *ending, *carrying, *asking;

static int loaded_locally(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    if (!info->dlpi_name || !strstr(info->dlpi_name, "/libpython3."))
        return 0;
    *(void **)found = dlopen(info->dlpi_name, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    return 1;
}

static bool look_up(void *where)
{
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(where, wanted[i].name);
        if (!found && !wanted[i].optional)
            return false;
        if (found)
            memcpy(wanted[i].to, &found, sizeof found);
    }
    return true;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the handles that were released for the last time */
static pthread_cond_t some = PTHREAD_COND_INITIALIZER;
static xp_box *first, **last = &first;

static xp_box *take_ended(void)
{
    if (!__atomic_load_n(&first, __ATOMIC_ACQUIRE))
        return NULL;
    pthread_mutex_lock(&lock);
    xp_box *found = first;
    first = NULL;
    last = &first;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Called with the GIL. End the objects that the program has released for the last time. */
static void end_boxes(void)
{
    for (xp_box *box = take_ended(), *next; box; box = next) {
        next = box->next;
        PyObject *arguments = py.TupleNew(1), *done = NULL;
        if (arguments && !py.TupleSetItem(arguments, 0, py.FromULL((uintptr_t)box)))
            done = py.CallObject(ending, arguments);
        if (!done)
            py.ErrPrint();
        py.DecRef(done);
        py.DecRef(arguments);
    }
}

static void *end_them(void *unused)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!first)
            pthread_cond_wait(&some, &lock);
        pthread_mutex_unlock(&lock);
        if (xp_python_enter())
            return unused; /* there is no Python any more */
        int held = py.GILState_Ensure();
        end_boxes();
        py.GILState_Release(held);
        xp_python_exit();
    }
}

void xp_python_end(xp_box *box)
{
    static bool running;
    pthread_t thread;
    pthread_mutex_lock(&lock);
    box->next = NULL;
    *last = box;
    last = &box->next;
    if (!running && pthread_create(&thread, NULL, end_them, NULL) == 0) { /* otherwise the next call of Python ends it */
        pthread_detach(thread);
        running = true;
    }
    pthread_cond_signal(&some);
    pthread_mutex_unlock(&lock);
}

double xp_linger(void)
{
    const char *text = getenv("XPUSHARE_LINGER");
    double seconds = text && *text ? strtod(text, NULL) : 10;
    return seconds > 0 ? seconds < 1e6 ? seconds : 1e6 : 0;
}

static void (*flush)(double seconds);

static void forked(void) { over = XP_INVALID_OPERATION; }

static pthread_cond_t left; /* with `lock` */
static bool has_left;

/* A clean exit of a program that knows nothing of Python: other processes must not take it for a death. */
static void *leave(void *seconds)
{
    flush(*(double *)seconds);
    int held = py.GILState_Ensure();
    end_boxes();
    PyObject *done = py.CallObject(leaving, NULL);
    if (!done)
        py.ErrPrint();
    else
        py.DecRef(done);
    py.GILState_Release(held);
    pthread_mutex_lock(&lock);
    has_left = true;
    pthread_cond_signal(&left);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void at_exit(void)
{
    if (over)
        return;
    pthread_t thread;
    struct timespec until;
    pthread_condattr_t monotonic;
    static double seconds;
    seconds = xp_linger();
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&left, &monotonic);
    if (pthread_create(&thread, NULL, leave, &seconds))
        return;
    /* Another thread may hold the GIL for ever. The functions that leave end in time by themselves. */
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds + 2;
    pthread_mutex_lock(&lock);
    while (!has_left && pthread_cond_timedwait(&left, &lock, &until) != ETIMEDOUT)
        ;
    bool in_time = has_left;
    pthread_mutex_unlock(&lock);
    if (in_time)
        pthread_join(thread, NULL);
    else
        xp_log("this process could not leave cleanly: a thread of it keeps Python's lock");
}

/* Make our own package importable: first in an interpreter of ours, last in a program's own. */
static void add_site(const char *site, bool first)
{
    PyObject *path = py.SysGetObject("path"), *folder = py.DecodeFS(site);
    if (path && folder && py.SequenceContains(path, folder) == 0)
        py.ListInsert(path, first ? 0 : py.ListSize(path), folder);
    if (folder)
        py.DecRef(folder);
}

/* With Python: the bridge's objects for each function. */
static bool ask_bridge(const char *site, bool own, unsigned count)
{
    add_site(site, own);
    PyObject *module = py.ImportModule("xpushare.ur.loader._bridge");
    PyObject *start = module ? py.GetAttrString(module, "start") : NULL;
    PyObject *arguments = py.TupleNew(1), *all = NULL;
    if (start && arguments && !py.TupleSetItem(arguments, 0, py.DecodeFS(site)))
        all = py.CallObject(start, arguments);
    leaving = all ? py.GetAttrString(module, "leave") : NULL;
    ending = leaving ? py.GetAttrString(module, "end") : NULL;
    carrying = ending ? py.GetAttrString(module, "carry") : NULL;
    asking = carrying ? py.GetAttrString(module, "is_clean") : NULL;
    functions = calloc(count, sizeof *functions);
    bool good = asking && functions && py.ListSize(all) == (ssize_t)count;
    for (unsigned i = 0; good && i < count; i++)
        functions[i] = py.ListGetItem(all, i); /* `all` is kept */
    if (py.ErrOccurred())
        py.ErrPrint();
    return good;
}

static bool start(unsigned count)
{
    xp_python p;
    void *local = NULL;
    dl_iterate_phdr(loaded_locally, &local);
    bool here = look_up(RTLD_DEFAULT) && py.IsInitialized();
    if (here) {
        if (!find_site(p.site))
            return false;
    } else {
        if (!find(&p)) {
            xp_log("%s", p.wrong);
            return false;
        }
        if (!dlopen(p.library, RTLD_NOW | RTLD_GLOBAL) || !look_up(RTLD_DEFAULT)) {
            xp_log("%s lacks functions of Python's stable ABI", p.library);
            return false;
        }
        wchar_t *name = py.DecodeLocale(p.executable, NULL);
        if (py.SetProgramName && name)
            py.SetProgramName(name);
        py.InitializeEx(0);
        py.SaveThread();
    }
    int held = py.GILState_Ensure();
    bool good = ask_bridge(p.site, !here, count);
    py.GILState_Release(held);
    if (!good) {
        xp_log("this package does not work in %s", here ? "this program's Python" : p.executable);
        return false;
    }
    pthread_atfork(NULL, NULL, forked);
    if (!here)
        atexit(at_exit);
    return true;
}

bool xp_python_start(unsigned count, void (*first_at_exit)(double seconds))
{
    pthread_mutex_lock(&starting);
    flush = first_at_exit;
    if (state == NOT_STARTED)
        state = start(count) ? STARTED : FAILED;
    pthread_mutex_unlock(&starting);
    return state == STARTED;
}

void xp_python_finish(void (*wake)(void))
{
    __atomic_store_n(&over, XP_UNINITIALIZED, __ATOMIC_SEQ_CST);
    wake();
    for (int i = 0; i < 2000 && __atomic_load_n(&within, __ATOMIC_SEQ_CST); i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

uint32_t xp_python_over(void) { return (uint32_t)__atomic_load_n(&over, __ATOMIC_SEQ_CST); }

uint32_t xp_python_enter(void)
{
    __atomic_fetch_add(&within, 1, __ATOMIC_SEQ_CST);
    uint32_t result = xp_python_over();
    if (result)
        xp_python_exit();
    return result;
}

void xp_python_exit(void) { __atomic_fetch_sub(&within, 1, __ATOMIC_SEQ_CST); }

static PyObject *tuple_of(const uint64_t *numbers, unsigned count)
{
    PyObject *tuple = py.TupleNew(count);
    for (unsigned i = 0; tuple && i < count; i++) {
        PyObject *number = py.FromULL(numbers[i]);
        if (!number || py.TupleSetItem(tuple, i, number)) {
            py.DecRef(tuple);
            tuple = NULL;
        }
    }
    return tuple;
}

/* Called with the GIL. The number that a function returns, or -1. */
static long ask(PyObject *function, const uint64_t *numbers, unsigned count)
{
    PyObject *arguments = tuple_of(numbers, count), *answer = NULL;
    long result = -1;
    if (arguments) {
        answer = py.CallObject(function, arguments);
        py.DecRef(arguments);
    }
    if (answer) {
        result = py.AsLong(answer);
        py.DecRef(answer);
    }
    if (py.ErrOccurred())
        py.ErrPrint();
    return result;
}

uint32_t xp_python_call(unsigned function, const uint64_t *words, unsigned count)
{
    int held = py.GILState_Ensure();
    end_boxes(); /* in the order of the program's calls */
    long result = ask(functions[function], words, count);
    py.GILState_Release(held);
    return result < 0 ? XP_UNKNOWN : (uint32_t)result;
}

/* --- threads of the library --------------------------------------------------------------------------------------- */

bool xp_python_attach(xp_python_thread *thread)
{
    if (xp_python_enter())
        return false;
    if (thread->state)
        py.RestoreThread(thread->state);
    else
        thread->held = py.GILState_Ensure();
    return true;
}

void xp_python_detach(xp_python_thread *thread)
{
    thread->state = py.SaveThread();
    xp_python_exit();
}

void xp_python_leave(xp_python_thread *thread)
{
    if (!thread->state || !xp_python_attach(thread))
        return;
    py.GILState_Release(thread->held);
    xp_python_exit();
}

void xp_python_carry(const uint64_t *numbers, unsigned count) { ask(carrying, numbers, count); }

bool xp_python_is_clean(const xp_box *queue) { return ask(asking, (uint64_t[]){(uintptr_t)queue}, 1) == 1; }

int xp_python_hold(void) { return py.GILState_Ensure(); }
void xp_python_let_go(int held) { py.GILState_Release(held); }

void *xp_python_unlock(void)
{
    void *own = py.ThreadState_GetUnchecked ? py.GILState_GetThisThreadState() : NULL;
    return own && py.ThreadState_GetUnchecked() == own ? py.SaveThread() : NULL;
}

void xp_python_lock(void *unlocked)
{
    if (unlocked)
        py.RestoreThread(unlocked);
}
