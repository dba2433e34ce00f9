/* The user's key, as it lies in a file that only this user can read. */
#include "seal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_key(const char *path)
{
    int fd;
    do /* without O_NONBLOCK, a FIFO would wait for its writer */
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* At most `room` bytes, or -1 and errno. */
static ssize_t read_bytes(int fd, uint8_t *bytes, size_t room)
{
    size_t had = 0;
    ssize_t n;
    do
        n = read(fd, bytes + had, room - had);
    while ((n < 0 && errno == EINTR) || (n > 0 && (had += (size_t)n) < room));
    return n < 0 ? n : (ssize_t)had;
}

static int read_private(int fd, uint8_t *key, uint32_t *detail)
{
    struct stat found;
    uint8_t bytes[XP_KEY_NBYTES + 1];
    ssize_t n = -1;
    if (fstat(fd, &found) == 0) {
        if (!S_ISREG(found.st_mode))
            return XP_KEY_NO_FILE;
        *detail = found.st_uid;
        if (found.st_uid != geteuid())
            return XP_KEY_OTHER_USER;
        *detail = found.st_mode & 07777;
        if (found.st_mode & 077)
            return XP_KEY_OPEN_TO_OTHERS;
        n = read_bytes(fd, bytes, sizeof bytes);
    }
    *detail = n < 0 ? (uint32_t)errno : (uint32_t)n;
    if (n != XP_KEY_NBYTES)
        return n < 0 ? XP_KEY_UNREADABLE : XP_KEY_SIZE;
    memcpy(key, bytes, XP_KEY_NBYTES);
    return XP_KEY_GOOD;
}

int xp_read_key(const char *path, uint8_t *key, uint32_t *detail)
{
    int fd = open_key(path);
    *detail = fd < 0 ? (uint32_t)errno : 0;
    if (fd < 0)
        return XP_KEY_UNREADABLE;
    int code = read_private(fd, key, detail);
    close(fd);
    return code;
}
