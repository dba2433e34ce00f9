/* LD_PRELOAD: a pretended Linux "xe" kernel driver for one Battlemage GPU, enough for Intel's real Level Zero driver
   (NEO, libze_intel_gpu.so.1) to start, allocate, export, import, map and bind with memfds as buffer objects. Batches
   are walked for MI_/PIPE_CONTROL/blitter commands, so copies, fills and event writes of the copy engine really happen;
   kernels do not run. gcc -O2 -shared -fPIC -pthread fakexe.c -o libfakexe.so -ldl        LD_PRELOAD=libfakexe.so
   FAKEXE_TRACE=1 FAKEXE_DEVICES=2 program */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <drm/drm.h>
#include <drm/xe_drm.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define MAXFD 65536
#define VA(a) ((a) & 0xffffffffffffull)
#define LOG(...)                                                                                                       \
    do {                                                                                                               \
        if (trace)                                                                                                     \
            fprintf(stderr, "fakexe: " __VA_ARGS__);                                                                   \
    } while (0)
static int (*real_open)(const char *, int, ...), (*real_ioctl)(int, unsigned long, ...), (*real_close)(int), trace;
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static unsigned char isdrm[MAXFD];
typedef struct {
    int fd, refs;
    uint64_t size, ino;
    char *ptr;
} bo;
static bo bos[65536];
static uint32_t nbo = 1, nvm = 1, nq = 1;
typedef struct bind {
    struct bind *next;
    uint32_t vm;
    uint64_t va, size;
    char *cpu;
} bind;
static bind *binds;
static uint32_t queue_vm[65536];
static pthread_mutex_t L = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t B = PTHREAD_RWLOCK_INITIALIZER; /* of binds */
typedef struct job {
    struct job *next;
    uint64_t at;
    uint32_t vm, n;
    struct drm_xe_sync s[8];
} job;
static struct queue {
    job *head, **tail;
    pthread_mutex_t m;
    pthread_cond_t c;
    int started;
    uint64_t gpr[64];
} queues[4096]; /* each exec queue is a thread: waits in the batch hold up only that queue */
__attribute__((constructor)) static void init(void)
{
    real_open = dlsym(RTLD_NEXT, "open");
    real_ioctl = dlsym(RTLD_NEXT, "ioctl");
    real_close = dlsym(RTLD_NEXT, "close");
    real_mmap = dlsym(RTLD_NEXT, "mmap");
    trace = getenv("FAKEXE_TRACE") ? atoi(getenv("FAKEXE_TRACE")) : 0;
}
int open(const char *p, int f, ...)
{
    va_list a;
    va_start(a, f);
    int m = va_arg(a, int);
    va_end(a);
    if (!real_open)
        init();
    if (!strncmp(p, "/dev/dri/renderD", 16)) {
        const char *k = getenv("FAKEXE_DEVICES");
        if (atoi(p + 16) >= 128 + (k ? atoi(k) : 1)) {
            errno = ENOENT;
            return -1;
        }
        int fd = memfd_create("fakexe-drm", MFD_CLOEXEC);
        if (fd >= 0 && fd < MAXFD)
            isdrm[fd] = 1;
        LOG("open %s = %d\n", p, fd);
        return fd;
    }
    return real_open(p, f, m);
}
int open64(const char *p, int f, ...)
{
    va_list a;
    va_start(a, f);
    int m = va_arg(a, int);
    va_end(a);
    return open(p, f, m);
}
int close(int fd)
{
    if (!real_close)
        init();
    if (fd >= 0 && fd < MAXFD)
        isdrm[fd] = 0;
    return real_close(fd);
}
void *mmap(void *p, size_t n, int pr, int fl, int fd, off_t off)
{
    if (!real_mmap)
        init();
    if (fd >= 0 && fd < MAXFD && isdrm[fd]) {
        uint32_t h = (uint64_t)off >> 32;
        void *r = real_mmap(p, n, pr, fl, bos[h].fd, off & 0xffffffff);
        LOG("mmap bo %u %zx = %p\n", h, n, r);
        return r;
    }
    return real_mmap(p, n, pr, fl, fd, off);
}
void *mmap64(void *p, size_t n, int pr, int fl, int fd, off_t off)
{
    return mmap(p, n, pr, fl, fd, off);
}
static void *gpu(uint32_t vm, uint64_t va, uint64_t n)
{
    void *r = 0;
    pthread_rwlock_rdlock(&B);
    for (bind *b = binds; b; b = b->next)
        if (b->vm == vm && va >= b->va && va + n <= b->va + b->size) {
            r = b->cpu + (va - b->va);
            break;
        }
    pthread_rwlock_unlock(&B);
    return r;
}
/* ---- the command streamer
 * -------------------------------------------------------------------------------------------------- */
static int unknown;
static void batch(uint32_t vm, uint64_t at, int depth, uint64_t gpr[64])
{
    uint64_t steps = 0;
    uint64_t ret[8];
    int sp = 0;
    for (;;) {
        uint32_t *c = gpu(vm, VA(at), 4);
        if (!c || ++steps > 400000000) {
            if (!c)
                LOG("batch: no mapping at %lx\n", at);
            return;
        }
        uint32_t d = *c, cl = d >> 29, len;
        if (cl == 0) {
            uint32_t o = d >> 23 & 63;
            len = o < 16 ? 1 : (d & 0xff) + 2;
            if (trace > 1)
                LOG("%lx MI %02x len %u %08x\n", at, o, len, d);
            switch (o) {
            case 0x00:
            case 0x01:
            case 0x02:
            case 0x05:
            case 0x0c:
            case 0x1b:
            case 0x04:
            case 0x08:
                break;
            case 0x0a:
                if (sp) {
                    at = ret[--sp];
                    continue;
                }
                return;
            case 0x31:
                if (d >> 22 & 1) {
                    if (sp < 8)
                        ret[sp++] = at + 12;
                }
                at = VA(c[1] | (uint64_t)c[2] << 32) & ~3ull;
                continue;
            case 0x20: {
                uint64_t a = VA(c[1] | (uint64_t)c[2] << 32) & ~3ull;
                void *p = gpu(vm, a, 8);
                if (p) {
                    if (d >> 21 & 1)
                        *(_Atomic uint64_t *)p = c[3] | (uint64_t)c[4] << 32;
                    else
                        *(_Atomic uint32_t *)p = c[3];
                }
                break;
            }
            case 0x22:
                for (uint32_t i = 1; i + 1 < len; i += 2) {
                    uint32_t r = (c[i] & 0x7fffff);
                    if (r % 0x1000 >= 0x600 && r % 0x1000 < 0x680)
                        ((uint32_t *)gpr)[(r % 0x1000 - 0x600) / 4] = c[i + 1];
                }
                break;
            case 0x29: {
                void *p = gpu(vm, VA(c[2] | (uint64_t)c[3] << 32), 4);
                uint32_t r = c[1] & 0xfff;
                if (p && r >= 0x600 && r < 0x680)
                    ((uint32_t *)gpr)[(r - 0x600) / 4] = *(_Atomic uint32_t *)p;
                break;
            }
            case 0x24: {
                void *p = gpu(vm, VA(c[2] | (uint64_t)c[3] << 32), 4);
                uint32_t r = c[1] & 0xfff;
                if (p) {
                    struct timespec t;
                    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
                    uint64_t ns = t.tv_sec * 1000000000ull + t.tv_nsec;
                    *(_Atomic uint32_t *)p =
                        r >= 0x600 && r < 0x680 ? ((uint32_t *)gpr)[(r - 0x600) / 4] : (uint32_t)(ns / 52);
                }
                break;
            }
            case 0x26: {
                uint32_t op = d >> 14 & 3;
                void *p = gpu(vm, VA(c[1] | (uint64_t)c[2] << 32) & ~7ull, 8);
                if (op == 1 && p)
                    *(_Atomic uint64_t *)p = c[3] | (uint64_t)c[4] << 32;
                break;
            }
            case 0x2f: {
                void *p = gpu(vm, VA(c[1] | (uint64_t)c[2] << 32) & ~3ull, 8);
                uint32_t op = d >> 8 & 0xff;
                int q = d >> 19 & 3;
                uint64_t v = c[3] | (q ? (uint64_t)c[4] << 32 : 0);
                if (p) {
                    if (op == 0x05 || op == 0x25)
                        q ? atomic_fetch_add((_Atomic uint64_t *)p, 1) : atomic_fetch_add((_Atomic uint32_t *)p, 1);
                    else if (op == 0x07 || op == 0x27)
                        q ? atomic_fetch_add((_Atomic uint64_t *)p, v)
                          : atomic_fetch_add((_Atomic uint32_t *)p, (uint32_t)v);
                    else
                        LOG("MI_ATOMIC op %x\n", op);
                }
                break;
            }
            case 0x1c: {
                uint64_t a = VA(c[2] | (uint64_t)c[3] << 32) & ~3ull;
                int q = d >> 20 & 1 ? 0 : 0, op = d >> 12 & 7;
                _Atomic uint32_t *p = gpu(vm, a, 4);
                uint32_t v = c[1];
                uint64_t tries = 0;
                if (!p) {
                    LOG("semaphore: no mapping %lx\n", a);
                    break;
                }
                for (;;) {
                    uint32_t x = *p;
                    int ok = op == 0   ? x > v
                             : op == 1 ? x >= v
                             : op == 2 ? x < v
                             : op == 3 ? x <= v
                             : op == 4 ? x == v
                                       : x != v;
                    if (ok)
                        break;
                    if (++tries == 100000)
                        LOG("semaphore: still waits, [%lx]=%x op %d want %x\n", a, x, op, v);
                    usleep(tries < 1000 ? 5 : 50);
                }
                (void)q;
                break;
            }
            default:
                LOG("MI %02x len %u ignored\n", o, len);
            }
        } else if (cl == 2) {
            uint32_t o = d >> 22 & 0x7f;
            len = (d & 0xff) + 2;
            if (trace > 1)
                LOG("%lx BLT %02x len %u: %08x %08x %08x %08x %08x %08x %08x %08x %08x %08x\n", at, o, len, d, c[1],
                    c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9]);
            if (o == 0x5a) { /* MEM_COPY */
                uint64_t w = (uint64_t)(c[1] & 0x3ffff) + 1, h = (uint64_t)(c[2] & 0x3ffff) + 1,
                         s = VA(c[5] | (uint64_t)c[6] << 32), t = VA(c[7] | (uint64_t)c[8] << 32);
                uint32_t sp2 = (c[3] & 0x3ffff) + 1, dp = (c[4] & 0x3ffff) + 1;
                int linear = !(d >> 17 & 1);
                uint64_t unit = d >> 19 & 1 ? 256 : 1;
                if (linear) {
                    w = ((uint64_t)(c[1] & 0x3ffff) | 0) + 1;
                    w *= unit;
                    void *a = gpu(vm, s, w), *b = gpu(vm, t, w);
                    if (a && b)
                        memmove(b, a, w);
                    else
                        LOG("MEM_COPY unmapped %lx %lx %lx\n", s, t, w);
                } else
                    for (uint64_t y = 0; y < h; y++) {
                        void *a = gpu(vm, s + y * sp2, w), *b = gpu(vm, t + y * dp, w);
                        if (a && b)
                            memmove(b, a, w);
                        else {
                            LOG("MEM_COPY unmapped\n");
                            break;
                        }
                    }
            } else if (o == 0x5b) { /* MEM_SET */
                uint64_t w = (uint64_t)(c[1] & 0x3ffff) + 1, h = (uint64_t)(c[2] & 0x3ffff) + 1,
                         dp = (c[3] & 0x3ffff) + 1, t = VA(c[4] | (uint64_t)c[5] << 32);
                int m2 = d >> 17 & 1;
                for (uint64_t y = 0; y < (m2 ? h : 1); y++) {
                    void *b = gpu(vm, t + y * dp, w);
                    if (b)
                        memset(b, c[6] >> 24, w);
                    else {
                        LOG("MEM_SET unmapped %lx\n", t);
                        break;
                    }
                }
            } else if (o == 0x41 || o == 0x44) { /* XY_BLOCK_COPY_BLT, XY_FAST_COLOR_BLT, linear only */
                uint32_t depth = d >> 19 & 7;
                uint64_t bpp = 1ull << depth;
                uint32_t x1 = c[2] & 0xffff, y1 = c[2] >> 16, x2 = c[3] & 0xffff, y2 = c[3] >> 16,
                         dp = (c[1] & 0x3ffff) + 1;
                uint64_t t = VA(c[4] | (uint64_t)c[5] << 32);
                if (o == 0x41) {
                    uint32_t sx = c[7] & 0xffff, sy = c[7] >> 16, sp2 = (c[8] & 0x3ffff) + 1;
                    uint64_t s = VA(c[9] | (uint64_t)c[10] << 32);
                    for (uint32_t y = y1; y < y2; y++) {
                        uint64_t n = (x2 - x1) * bpp;
                        void *b = gpu(vm, t + (uint64_t)y * dp + x1 * bpp, n),
                             *a = gpu(vm, s + (uint64_t)(sy + y - y1) * sp2 + sx * bpp, n);
                        if (a && b)
                            memmove(b, a, n);
                        else {
                            LOG("BLOCK_COPY unmapped s %lx d %lx n %lx\n", s, t, n);
                            break;
                        }
                    }
                } else
                    for (uint32_t y = y1; y < y2; y++)
                        for (uint32_t x = x1; x < x2; x++) {
                            void *b = gpu(vm, t + (uint64_t)y * dp + x * bpp, bpp);
                            if (b)
                                memcpy(b, &c[7], bpp < 16 ? bpp : 16);
                        }
            } else {
                LOG("BLT %02x len %u ignored\n", o, len);
                unknown++;
            }
        } else if (cl == 3) {
            len = (d & 0xff) + 2;
            uint32_t op = d >> 16 & 0x1fff;
            if (trace > 1)
                LOG("%lx GFX %04x len %u\n", at, d >> 16, len);
            if (d >> 16 == 0x7a00) {
                uint32_t ps = c[1] >> 14 & 3;
                void *p = gpu(vm, VA(c[2] | (uint64_t)c[3] << 32) & ~7ull, 8);
                if (ps == 1 && p)
                    *(_Atomic uint64_t *)p = c[4] | (uint64_t)c[5] << 32;
            } else if (d >> 16 == 0x7202 || d >> 16 == 0x7208)
                LOG("COMPUTE_WALKER skipped (len %u)\n", len);
            (void)op;
            if (d >> 16 == 0x6904)
                len = 1;
        } else {
            LOG("unknown command %08x at %lx\n", d, at);
            return;
        }
        at += 4ull * len;
    }
}
/* ---- ioctls
 * ----------------------------------------------------------------------------------------------------------------- */
static int out(struct drm_xe_device_query *q, const void *p, size_t n)
{
    if (!q->size) {
        q->size = n;
        return 0;
    }
    if (q->size < n) {
        errno = EINVAL;
        return -1;
    }
    memcpy((void *)(uintptr_t)q->data, p, n);
    return 0;
}
static int query(struct drm_xe_device_query *q)
{
    switch (q->query) {
    case DRM_XE_DEVICE_QUERY_CONFIG: {
        uint64_t b[1 + 5] = {5, 0xe20b | 0ull << 16, 1 | 2 | 8, 65536, 48, 2};
        return out(q, b, sizeof b);
    }
    case DRM_XE_DEVICE_QUERY_ENGINES: {
        struct {
            uint32_t n, pad;
            struct drm_xe_engine e[4];
        } b = {3,
               0,
               {{{DRM_XE_ENGINE_CLASS_RENDER, 0, 0, 0}},
                {{DRM_XE_ENGINE_CLASS_COPY, 0, 0, 0}},
                {{DRM_XE_ENGINE_CLASS_COMPUTE, 0, 0, 0}}}};
        return out(q, &b, 8 + 3 * sizeof b.e[0]);
    }
    case DRM_XE_DEVICE_QUERY_MEM_REGIONS: {
        struct {
            uint32_t n, pad;
            struct drm_xe_mem_region r[2];
        } b = {2,
               0,
               {{.mem_class = 0, .instance = 0, .min_page_size = 4096, .total_size = 8ull << 30},
                {.mem_class = 1,
                 .instance = 1,
                 .min_page_size = 65536,
                 .total_size = 8ull << 30,
                 .cpu_visible_size = 8ull << 30}}};
        return out(q, &b, sizeof b);
    }
    case DRM_XE_DEVICE_QUERY_GT_LIST: {
        struct {
            uint32_t n, pad;
            struct drm_xe_gt g[1];
        } b = {1,
               0,
               {{.type = 0,
                 .tile_id = 0,
                 .gt_id = 0,
                 .reference_clock = 19200000,
                 .near_mem_regions = 2,
                 .far_mem_regions = 1,
                 .ip_ver_major = 20,
                 .ip_ver_minor = 1,
                 .ip_ver_rev = 4}}};
        return out(q, &b, sizeof b);
    }
    case DRM_XE_DEVICE_QUERY_HWCONFIG: {
        if (!q->size) {
            q->size = 0;
            return 0;
        }
        return 0;
    }
    case DRM_XE_DEVICE_QUERY_GT_TOPOLOGY: {
        struct __attribute__((packed)) {
            struct {
                uint16_t gt, type;
                uint32_t n;
                uint64_t m;
            } t[4];
        } b = {{{0, 1, 8, 0xfffff}, {0, 2, 8, 0xfffff}, {0, 3, 8, 0xff}, {0, 5, 8, 0xff}}};
        return out(q, &b, sizeof b);
    }
    case DRM_XE_DEVICE_QUERY_ENGINE_CYCLES: {
        if (!q->size) {
            q->size = sizeof(struct drm_xe_query_engine_cycles);
            return 0;
        }
        struct drm_xe_query_engine_cycles *e = (void *)(uintptr_t)q->data;
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC_RAW, &t);
        e->cpu_timestamp = t.tv_sec * 1000000000ull + t.tv_nsec;
        e->engine_cycles = e->cpu_timestamp / 52;
        e->width = 36;
        e->cpu_delta = 1;
        return 0;
    }
    default:
        errno = EINVAL;
        return -1;
    }
}
static void fence(uint32_t vm, struct drm_xe_sync *s, uint32_t n, int exec)
{
    for (uint32_t i = 0; i < n; i++)
        if (s[i].type == DRM_XE_SYNC_TYPE_USER_FENCE && s[i].flags & DRM_XE_SYNC_FLAG_SIGNAL) {
            _Atomic uint64_t *p = 0;
            if (exec)
                p = gpu(vm, VA(s[i].addr), 8);
            if (!p)
                p = (void *)(uintptr_t)s[i].addr;
            *p = s[i].timeline_value;
            LOG("fence %p = %lx\n", (void *)p, (long)s[i].timeline_value);
        }
}
static int newbo(int fd, uint64_t size)
{
    struct stat st;
    fstat(fd, &st);
    uint32_t h = nbo++;
    bos[h] = (bo){fd, 1, size, st.st_ino, real_mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)};
    return h;
}
static void dobind(uint32_t vm, struct drm_xe_vm_bind_op *o)
{
    uint64_t va = VA(o->addr);
    LOG("bind vm %u op %u obj %u off %lx va %lx +%lx flags %x\n", vm, o->op, o->obj, (long)o->obj_offset, (long)va,
        (long)o->range, o->flags);
    if (o->op == DRM_XE_VM_BIND_OP_MAP || o->op == DRM_XE_VM_BIND_OP_MAP_USERPTR) {
        if (o->flags & (DRM_XE_VM_BIND_FLAG_NULL | DRM_XE_VM_BIND_FLAG_CPU_ADDR_MIRROR))
            return;
        bind *b = malloc(sizeof *b);
        pthread_rwlock_wrlock(&B);
        *b = (bind){binds, vm, va, o->range,
                    o->op == DRM_XE_VM_BIND_OP_MAP ? bos[o->obj].ptr + o->obj_offset : (char *)(uintptr_t)o->userptr};
        binds = b;
        pthread_rwlock_unlock(&B);
    } else if (o->op == DRM_XE_VM_BIND_OP_UNMAP) {
        pthread_rwlock_wrlock(&B);
        for (bind **q = &binds; *q;) {
            bind *b = *q;
            if (b->vm == vm && b->va >= va && b->va + b->size <= va + o->range) {
                *q = b->next;
                free(b);
            } else
                q = &b->next;
        }
        pthread_rwlock_unlock(&B);
    }
}
static void *engine(void *a)
{
    struct queue *q = a;
    for (;;) {
        pthread_mutex_lock(&q->m);
        while (!q->head)
            pthread_cond_wait(&q->c, &q->m);
        job *j = q->head;
        pthread_mutex_unlock(&q->m);
        batch(j->vm, VA(j->at), 0, q->gpr);
        fence(j->vm, j->s, j->n, 1);
        pthread_mutex_lock(&q->m);
        q->head = j->next;
        if (!q->head)
            q->tail = &q->head;
        pthread_mutex_unlock(&q->m);
        free(j);
    }
    return 0;
}
int ioctl(int fd, unsigned long r, ...)
{
    va_list a;
    va_start(a, r);
    void *p = va_arg(a, void *);
    va_end(a);
    if (!real_ioctl)
        init();
    if (fd < 0 || fd >= MAXFD || !isdrm[fd])
        return real_ioctl(fd, r, p);
    int nr = _IOC_NR(r);
    LOG("ioctl %d nr %02x\n", fd, nr);
    pthread_mutex_lock(&L);
    int rc = 0;
    switch (nr) {
    case 0x00: {
        struct drm_version *v = p;
        v->version_major = 1;
        if (v->name && v->name_len)
            memcpy(v->name, "xe\0", v->name_len < 3 ? v->name_len : 3);
        v->name_len = 2;
        break;
    }
    case 0x09: {
        struct drm_gem_close *c = p;
        bo *b = &bos[c->handle];
        if (b->size) {
            munmap(b->ptr, b->size);
            real_close(b->fd);
            memset(b, 0, sizeof *b);
        }
        break;
    }
    case 0x2d: {
        struct drm_prime_handle *h = p;
        h->fd = fcntl(bos[h->handle].fd, F_DUPFD_CLOEXEC, 0);
        LOG("prime export bo %u -> fd %d\n", h->handle, h->fd);
        if (h->fd < 0)
            rc = -1;
        break;
    }
    case 0x2e: {
        struct drm_prime_handle *h = p;
        struct stat st;
        char ln[64], at[32];
        snprintf(at, sizeof at, "/proc/self/fd/%d", h->fd);
        ssize_t z = readlink(at, ln, 63);
        ln[z < 0 ? 0 : z] = 0;
        if (fstat(h->fd, &st) || strncmp(ln, "/memfd:fakexe-bo", 16)) {
            errno = EINVAL;
            rc = -1;
            break;
        }
        uint32_t i;
        for (i = 1; i < nbo; i++)
            if (bos[i].size && bos[i].ino == st.st_ino)
                break;
        h->handle = i < nbo ? i : (uint32_t)newbo(fcntl(h->fd, F_DUPFD_CLOEXEC, 0), st.st_size);
        LOG("prime import fd %d -> bo %u size %lx\n", h->fd, h->handle, (long)st.st_size);
        break;
    }
    case 0x0c: {
        struct drm_get_cap *c = p;
        c->value = 1;
        break;
    }
    default:
        if (nr >= 0x40 && nr < 0xa0)
            switch (nr - 0x40) {
            case DRM_XE_DEVICE_QUERY:
                rc = query(p);
                break;
            case DRM_XE_GEM_CREATE: {
                struct drm_xe_gem_create *c = p;
                int m = memfd_create("fakexe-bo", MFD_CLOEXEC);
                if (m < 0 || ftruncate(m, c->size)) {
                    rc = -1;
                    break;
                }
                c->handle = newbo(m, c->size);
                LOG("gem create %lx placement %x = bo %u\n", (long)c->size, c->placement, c->handle);
                break;
            }
            case DRM_XE_GEM_MMAP_OFFSET: {
                struct drm_xe_gem_mmap_offset *o = p;
                o->offset = (uint64_t)o->handle << 32;
                break;
            }
            case DRM_XE_VM_CREATE: {
                struct drm_xe_vm_create *v = p;
                if (v->flags & DRM_XE_VM_CREATE_FLAG_FAULT_MODE) {
                    errno = EINVAL;
                    rc = -1;
                    break;
                }
                v->vm_id = nvm++;
                break;
            }
            case 0x04:
                break; /* VM_DESTROY */
            case DRM_XE_VM_BIND: {
                struct drm_xe_vm_bind *b = p;
                if (b->num_binds == 1)
                    dobind(b->vm_id, &b->bind);
                else
                    for (uint32_t i = 0; i < b->num_binds; i++)
                        dobind(b->vm_id, (struct drm_xe_vm_bind_op *)(uintptr_t)b->vector_of_binds + i);
                fence(b->vm_id, (void *)(uintptr_t)b->syncs, b->num_syncs, 0);
                break;
            }
            case DRM_XE_EXEC_QUEUE_CREATE: {
                struct drm_xe_exec_queue_create *q = p;
                q->exec_queue_id = nq++;
                queue_vm[q->exec_queue_id] = q->vm_id;
                LOG("queue %u class %u vm %u\n", q->exec_queue_id,
                    ((struct drm_xe_engine_class_instance *)(uintptr_t)q->instances)->engine_class, q->vm_id);
                break;
            }
            case DRM_XE_EXEC_QUEUE_DESTROY:
                break;
            case DRM_XE_EXEC_QUEUE_GET_PROPERTY:
                ((struct drm_xe_exec_queue_get_property *)p)->value = 0;
                break;
            case DRM_XE_EXEC: {
                struct drm_xe_exec *e = p;
                uint32_t vm = queue_vm[e->exec_queue_id];
                LOG("exec queue %u at %lx syncs %u\n", e->exec_queue_id, (long)e->address, e->num_syncs);
                struct queue *q = &queues[e->exec_queue_id];
                job *j = calloc(1, sizeof *j);
                j->at = e->address;
                j->vm = vm;
                j->n = e->num_syncs < 8 ? e->num_syncs : 8;
                memcpy(j->s, (void *)(uintptr_t)e->syncs, j->n * sizeof *j->s);
                if (!q->started) {
                    q->started = 1;
                    q->tail = &q->head;
                    pthread_mutex_init(&q->m, 0);
                    pthread_cond_init(&q->c, 0);
                    pthread_t t;
                    pthread_create(&t, 0, engine, q);
                    pthread_detach(t);
                }
                pthread_mutex_lock(&q->m);
                *q->tail = j;
                q->tail = &j->next;
                pthread_cond_signal(&q->c);
                pthread_mutex_unlock(&q->m);
                break;
            }
            case DRM_XE_WAIT_USER_FENCE: {
                struct drm_xe_wait_user_fence *w = p;
                pthread_mutex_unlock(&L);
                _Atomic uint64_t *x = (void *)(uintptr_t)w->addr;
                struct timespec t;
                clock_gettime(CLOCK_MONOTONIC, &t);
                uint64_t t0 = t.tv_sec * 1000000000ull + t.tv_nsec;
                uint64_t lim = w->timeout < 0 ? ~0ull >> 1 : (uint64_t)w->timeout;
                if (w->flags & 1)
                    lim = 5000000000ull;
                for (;;) {
                    uint64_t v = *x & w->mask, y = w->value & w->mask;
                    int ok = w->op == 0   ? v == y
                             : w->op == 1 ? v != y
                             : w->op == 2 ? v > y
                             : w->op == 3 ? v >= y
                             : w->op == 4 ? v < y
                                          : v <= y;
                    if (ok)
                        return 0;
                    clock_gettime(CLOCK_MONOTONIC, &t);
                    if (t.tv_sec * 1000000000ull + t.tv_nsec - t0 > lim) {
                        errno = ETIME;
                        return -1;
                    }
                    usleep(20);
                }
            }
            case DRM_XE_EXEC_QUEUE_SET_PROPERTY:
            case DRM_XE_MADVISE:
                break;
            default:
                LOG("xe ioctl %x refused\n", nr - 0x40);
                errno = EINVAL;
                rc = -1;
            }
        else {
            LOG("drm ioctl %x refused\n", nr);
            errno = EINVAL;
            rc = -1;
        }
    }
    pthread_mutex_unlock(&L);
    return rc;
}
