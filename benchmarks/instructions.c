/* Runs a program, single-steps it between its marks, and counts what it executes: user instructions, the distinct cache
 * lines and pages of code that they lie in, and system calls. For each label it prints the interval with the fewest
 * instructions: a timer, a busy lock or a table that grows only ever adds some. instructions.py builds and drives it;
 * x86-64 only.
 *
 * With -DMARK this is the Python module `mark`: mark.mark(n) ends an interval and, if n > 0, begins one of label n. */
#ifdef MARK
#include <Python.h>

static PyObject *mark(PyObject *Py_UNUSED(m), PyObject *arg)
{
    long label = PyLong_AsLong(arg);
    if (label == -1 && PyErr_Occurred())
        return NULL;
    __asm__ volatile("int3" ::"a"(label), "d"(0x5eedL));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"mark", mark, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "mark", .m_methods = methods};
PyMODINIT_FUNC PyInit_mark(void) { return PyModule_Create(&definition); }
#else
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 1 << 20, LABELS = 64, INTERVALS = 1024 };

typedef struct {
    long instructions, lines, pages, calls;
} count;

static count all[LABELS][INTERVALS];
static int counted[LABELS];

/* A set of addresses that is emptied by the next number. */
static uint64_t members[SLOTS];
static unsigned numbers[SLOTS], number = 1;

static int add(uint64_t value)
{
    uint32_t at = (uint32_t)((value * 0x9E3779B97F4A7C15ull) >> 44);
    for (; numbers[at] == number; at = (at + 1) % SLOTS)
        if (members[at] == value)
            return 0;
    numbers[at] = number;
    members[at] = value;
    return 1;
}

static int compare(const void *a, const void *b)
{
    long x = ((const count *)a)->instructions, y = ((const count *)b)->instructions;
    return (x > y) - (x < y);
}

static void print(void)
{
    for (int label = 1; label < LABELS; label++) {
        if (counted[label] == 0)
            continue;
        qsort(all[label], (size_t)counted[label], sizeof(count), compare);
        const count *m = &all[label][0];
        printf("%d %d %ld %ld %ld %ld\n", label, counted[label], m->instructions, m->lines, m->pages, m->calls);
    }
}

/* While it is stepped, the program shares our CPU: each step is two switches, which are slow from one CPU to another. */
static void share_cpu(pid_t pid, bool stepping)
{
    static cpu_set_t all;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (CPU_COUNT(&all) == 0 && sched_getaffinity(0, sizeof all, &all))
        return;
    sched_setaffinity(0, sizeof all, stepping ? &one : &all);
    sched_setaffinity(pid, sizeof all, stepping ? &one : &all);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    pid_t pid = fork();
    if (pid == 0) {
        personality(ADDR_NO_RANDOMIZE); /* addresses are hashed; where this is refused, the figures are noisier */
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) == 0)
            execvp(argv[1], argv + 1);
        perror("ptrace or exec");
        _exit(127);
    }
    int status;
    long label = 0;
    count now = {0};
    bool stepping = false, first = true;
    while (waitpid(pid, &status, 0) == pid && !WIFEXITED(status) && !WIFSIGNALED(status)) {
        int sig = WSTOPSIG(status);
        if (first) { /* the stop at exec */
            ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_EXITKILL);
            first = false;
            sig = 0;
        }
        struct user_regs_struct regs;
        siginfo_t info;
        ptrace(PTRACE_GETREGS, pid, 0, &regs);
        if (sig == SIGTRAP) {
            if (regs.rdx == 0x5eed && ptrace(PTRACE_GETSIGINFO, pid, 0, &info) == 0 && info.si_code == SI_KERNEL) {
                /* a mark */
                if (stepping && counted[label] < INTERVALS)
                    all[label][counted[label]++] = now;
                label = (long)regs.rax;
                stepping = label > 0 && label < LABELS;
                now = (count){0};
                number++;
                share_cpu(pid, stepping);
            } else if (stepping) {
                now.instructions++;
                now.lines += add(regs.rip >> 6);
                now.pages += add(1ull << 60 | regs.rip >> 12);
            }
            sig = 0;
        }
        if (stepping && (ptrace(PTRACE_PEEKTEXT, pid, (void *)regs.rip, 0) & 0xffff) == 0x050f)
            now.calls++;
        ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, 0, sig);
    }
    print();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
#endif
