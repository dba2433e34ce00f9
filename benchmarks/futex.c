/* A ping-pong of two processes over bare futexes: the floor of an event's round trip. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    uint32_t value, waiting;
    char pad[120];
} word;

static void wait_for(word *w, uint32_t n)
{
    uint32_t now;
    while (__atomic_load_n(&w->value, __ATOMIC_SEQ_CST) != n) {
        __atomic_store_n(&w->waiting, 1, __ATOMIC_SEQ_CST);
        if ((now = __atomic_load_n(&w->value, __ATOMIC_SEQ_CST)) != n)
            syscall(SYS_futex, &w->value, FUTEX_WAIT, now, NULL, NULL, 0);
    }
}

static void post(word *w, uint32_t n)
{
    __atomic_store_n(&w->value, n, __ATOMIC_SEQ_CST);
    if (__atomic_exchange_n(&w->waiting, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &w->value, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* argv: rounds, and the CPUs that both processes may run on. Prints how long each round took. */
int main(int argc, char **argv)
{
    uint32_t rounds = (uint32_t)atoi(argv[1]);
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 2; i < argc; i++)
        CPU_SET(atoi(argv[i]), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        return 1;
    alarm(60);
    word *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double *took = calloc(rounds, sizeof *took);
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint32_t n = 1; n <= rounds + 10; n++) {
            wait_for(&words[0], n);
            post(&words[1], n);
        }
        _exit(0);
    }
    for (uint32_t n = 1; n <= rounds + 10; n++) {
        double start = now_us();
        post(&words[0], n);
        wait_for(&words[1], n);
        if (n > 10)
            took[n - 11] = now_us() - start;
    }
    waitpid(child, NULL, 0);
    for (uint32_t n = 0; n < rounds; n++)
        printf("%.3f\n", took[n]);
    return 0;
}
