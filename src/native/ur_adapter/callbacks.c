/* Calls functions of the program on a separate thread, which holds no lock, least of all Python's. */
#include "parts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct xp_call {
    struct xp_call *next;
    void *function, *handle, *data;
    uint32_t number;
    bool logs; /* a text is passed to (number, text, data), an event to (handle, number, data) */
    char text[];
} xp_call;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t some = PTHREAD_COND_INITIALIZER;
static xp_call *first, **last = &first;
static bool running;

static void *run(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!first)
            pthread_cond_wait(&some, &lock);
        xp_call *call = first;
        first = call->next;
        if (!first)
            last = &first;
        pthread_mutex_unlock(&lock);
        if (call->logs)
            ((void (*)(uint32_t, const char *, void *))call->function)(call->number, call->text, call->data);
        else {
            ((void (*)(void *, uint32_t, void *))call->function)(call->handle, call->number, call->data);
            xp_count(call->handle, -1);
        }
        free(call);
    }
    return NULL;
}

XP_EXPORT int xpushare_ur_post(void *function, void *handle, uint32_t number, void *data, const char *text)
{
    size_t length = text ? strlen(text) + 1 : 0;
    xp_call *call = malloc(sizeof *call + length);
    if (!call)
        return -1;
    *call = (xp_call){.function = function, .handle = handle, .data = data, .number = number, .logs = text != NULL};
    if (text)
        memcpy(call->text, text, length);
    pthread_mutex_lock(&lock);
    pthread_t thread;
    if (!running && pthread_create(&thread, NULL, run, NULL) == 0) {
        pthread_detach(thread);
        running = true;
    }
    bool posted = running;
    if (posted) {
        *last = call;
        last = &call->next;
        pthread_cond_signal(&some);
    }
    pthread_mutex_unlock(&lock);
    if (!posted)
        free(call);
    return posted ? 0 : -1;
}
