#include "xp.h"

#include "relay.h"

#include <sys/prctl.h>
#include <time.h>

#define MOST_THREADS 32 /* each stalling driver blocks one */
#define IDLE_NS 1000000000u

static pthread_mutex_t relay_mu = PTHREAD_MUTEX_INITIALIZER; /* innermost: nothing is called with it */
static pthread_cond_t work, left;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static xp_job *first, **last = &first;
static unsigned jobs, threads, idle;
static bool stopping;

static void make_conditions(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&work, &monotonic);
    pthread_cond_init(&left, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static struct timespec after(uint64_t ns)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    ns += (uint64_t)t.tv_nsec;
    t.tv_sec += (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    return t;
}

static void *relay(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "xpushare-relay");
    pthread_mutex_lock(&relay_mu);
    while (!stopping || first) { /* jobs posted before the stop are done, since queues wait for them */
        xp_job *job = first;
        if (job) {
            first = job->next;
            last = first ? last : &first;
            jobs--;
            pthread_mutex_unlock(&relay_mu);
            job->run(job);
            pthread_mutex_lock(&relay_mu);
            continue;
        }
        struct timespec until = after(IDLE_NS);
        idle++;
        int rc = pthread_cond_timedwait(&work, &relay_mu, &until);
        idle--;
        if (rc == ETIMEDOUT && first == NULL && threads > 1)
            break; /* this thread was started while others were stalled */
    }
    threads--;
    pthread_cond_broadcast(&left);
    pthread_mutex_unlock(&relay_mu);
    return NULL;
}

/* With relay_mu. */
static int spawn(void)
{
    pthread_t thread;
    int rc = xp_thread(&thread, relay);
    if (rc == 0) {
        pthread_detach(thread); /* a driver may block it for ever */
        threads++;
    }
    return rc;
}

int xp_relay_start(void)
{
    pthread_once(&once, make_conditions);
    pthread_mutex_lock(&relay_mu);
    stopping = false;
    int rc = threads == 0 || (jobs > idle && threads < MOST_THREADS) ? spawn() : 0;
    rc = threads ? 0 : rc;
    pthread_mutex_unlock(&relay_mu);
    return rc;
}

void xp_relay_post(xp_job *job)
{
    pthread_mutex_lock(&relay_mu);
    job->next = NULL;
    *last = job;
    last = &job->next;
    jobs++;
    if (!stopping && jobs > idle && threads && threads < MOST_THREADS)
        spawn(); /* the others may be stalled; without memory for another thread, they do the job later */
    if (threads)
        pthread_cond_signal(&work);
    pthread_mutex_unlock(&relay_mu);
}

bool xp_relay_stop(uint64_t ns)
{
    pthread_mutex_lock(&relay_mu);
    struct timespec until = after(ns);
    stopping = true;
    if (threads)
        pthread_cond_broadcast(&work);
    int rc = 0;
    while (threads && rc == 0)
        rc = pthread_cond_timedwait(&left, &relay_mu, &until);
    bool all = threads == 0;
    pthread_mutex_unlock(&relay_mu);
    return all;
}

void xp_relay_fork_prepare(void) { pthread_mutex_lock(&relay_mu); }
void xp_relay_fork_parent(void) { pthread_mutex_unlock(&relay_mu); }

/* In the child, with relay_mu: the threads and the jobs belong to the parent. */
void xp_relay_forked(void)
{
    first = NULL;
    last = &first;
    jobs = threads = idle = 0;
    stopping = false;
    make_conditions();
}
