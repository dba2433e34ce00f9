/* Included before everything else (CMakeLists.txt): what is built with a newer glibc loads with 2.28, too, as
 * manylinux_2_28 promises. glibc 2.32 to 2.34 gave these functions new versions as they moved between libraries, nothing
 * else; the older version of each is still there, and is what an older glibc has. `stat`, `lstat` and `fstat` were not functions
 * before 2.33, but macros of those below. A process that runs Python has libpthread loaded. */
#ifndef XP_OLDER_GLIBC_H
#define XP_OLDER_GLIBC_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <features.h>

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#include <sys/stat.h>

#ifdef __x86_64__
#define XP_FIRST "GLIBC_2.2.5"
#define XP_SECOND "GLIBC_2.3.3"
#define XP_THIRD "GLIBC_2.12"
#define XP_STAT_VERSION 1
#else
#define XP_FIRST "GLIBC_2.17"
#define XP_SECOND "GLIBC_2.17"
#define XP_THIRD "GLIBC_2.17"
#define XP_STAT_VERSION 0
#endif

#define XP_VERSION_OF(name, version) __asm__(".symver " #name "," #name "@" version)
XP_VERSION_OF(pthread_sigmask, XP_FIRST);
XP_VERSION_OF(pthread_create, XP_FIRST);
XP_VERSION_OF(pthread_detach, XP_FIRST);
XP_VERSION_OF(pthread_join, XP_FIRST);
XP_VERSION_OF(pthread_once, XP_FIRST);
XP_VERSION_OF(pthread_condattr_setclock, XP_SECOND);
XP_VERSION_OF(pthread_setname_np, XP_THIRD);
XP_VERSION_OF(dlopen, XP_FIRST);
XP_VERSION_OF(dlclose, XP_FIRST);
XP_VERSION_OF(dlsym, XP_FIRST);
XP_VERSION_OF(dladdr, XP_FIRST);
XP_VERSION_OF(dladdr1, XP_SECOND);

extern int __fxstat(int version, int fd, struct stat *found);
extern int __xstat(int version, const char *path, struct stat *found);
extern int __lxstat(int version, const char *path, struct stat *found);
#define fstat(fd, found) __fxstat(XP_STAT_VERSION, fd, found)
#define stat(path, found) __xstat(XP_STAT_VERSION, path, found)
#define lstat(path, found) __lxstat(XP_STAT_VERSION, path, found)
#endif

#endif
