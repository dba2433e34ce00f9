/* The key's file, and messages that are sealed anew. */
#include "../../../src/engine/seal.h"
#include "support.h"

#include <sys/stat.h>

static char path[] = "/tmp/xpushare-key-XXXXXX";

static void write_file(size_t nbytes, mode_t mode)
{
    static const uint8_t bytes[64] = {1, 2, 3, [31] = 9};
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    CHECK(fd >= 0 && write(fd, bytes, nbytes) == (ssize_t)nbytes && fchmod(fd, mode) == 0 && close(fd) == 0);
}

static void expect_refusal(const char *file, int code, uint32_t detail)
{
    uint8_t key[XP_KEY_NBYTES] = {7};
    uint32_t found;
    EQUAL(xp_read_key(file, key, &found), code);
    EQUAL(found, detail);
    EQUAL(key[0], 7); /* as it was */
}

static void test_keys(void)
{
    uint8_t key[XP_KEY_NBYTES];
    uint32_t detail;
    char link[64], fifo[64];
    write_file(32, 0600);
    EQUAL(xp_read_key(path, key, &detail), XP_KEY_GOOD);
    CHECK(key[0] == 1 && key[31] == 9);
    write_file(31, 0600);
    expect_refusal(path, XP_KEY_SIZE, 31);
    write_file(64, 0600);
    expect_refusal(path, XP_KEY_SIZE, 33);
    write_file(32, 0640);
    expect_refusal(path, XP_KEY_OPEN_TO_OTHERS, 0640);
    if (geteuid() == 0) {
        write_file(32, 0600);
        CHECK(chown(path, 12345, (gid_t)-1) == 0);
        expect_refusal(path, XP_KEY_OTHER_USER, 12345);
        CHECK(chown(path, 0, (gid_t)-1) == 0);
    }
    expect_refusal("/tmp", XP_KEY_NO_FILE, 0);
    expect_refusal("/no/such/key", XP_KEY_UNREADABLE, ENOENT);
    snprintf(link, sizeof link, "%s-link", path);
    snprintf(fifo, sizeof fifo, "%s-fifo", path);
    CHECK(symlink(path, link) == 0 && mkfifo(fifo, 0600) == 0);
    expect_refusal(link, XP_KEY_UNREADABLE, ELOOP);
    expect_refusal(fifo, XP_KEY_NO_FILE, 0);
    CHECK(unlink(link) == 0 && unlink(fifo) == 0);
}

static void write_handle(uint8_t *at, const xp_key *k, uint32_t entry)
{
    xp_handle h = {.version = XP_VERSION, .kind = XP_KIND_MEMORY, .entry = entry, .nbytes = 64};
    memcpy(h.magic, XP_HANDLE_MAGIC, sizeof h.magic);
    xp_hash(k, &h, offsetof(xp_handle, seal), h.seal);
    memcpy(at, &h, sizeof h);
}

static void test_moved_messages(void)
{
    static uint8_t raw[sizeof(xp_message) + sizeof(xp_handle) + sizeof(xp_leaf) + XP_SEAL];
    uint8_t before[sizeof raw], handle[sizeof(xp_handle)], other[sizeof handle];
    xp_key k, wrong;
    xp_parts m;
    xp_make_key(&k, "key", 3);
    xp_make_key(&wrong, "kez", 3);
    xp_message head = {.version = XP_MESSAGE_VERSION, .length = sizeof raw, .memory = 1, .arrays = 1};
    memcpy(head.magic, XP_MESSAGE_MAGIC, sizeof head.magic);
    memcpy(raw, &head, sizeof head);
    write_handle(handle, &k, 3);
    write_handle(other, &k, 4);
    memcpy(raw + sizeof head, handle, sizeof handle);
    CHECK(!xp_seal_message(&k, raw, sizeof raw - 1) && xp_seal_message(&k, raw, sizeof raw));
    CHECK(xp_read_message(&k, raw, sizeof raw, &m) && !xp_read_message(&wrong, raw, sizeof raw, &m));
    memcpy(before, raw, sizeof raw);
    EQUAL(xp_move_message(&wrong, raw, sizeof raw, other, sizeof other), XP_MOVE_NOT_SEALED);
    EQUAL(xp_move_message(&k, raw, sizeof raw, other, sizeof other - 1), XP_MOVE_OTHER_COUNT);
    EQUAL(memcmp(before, raw, sizeof raw), 0);
    EQUAL(xp_move_message(&k, raw, sizeof raw, other, sizeof other), XP_MOVE_GOOD);
    CHECK(xp_read_message(&k, raw, sizeof raw, &m) && memcmp(m.memory, other, sizeof other) == 0);
    CHECK(memcmp(before + sizeof raw - XP_SEAL, raw + sizeof raw - XP_SEAL, XP_SEAL) != 0);
    EQUAL(xp_move_message(&k, raw, sizeof raw, handle, sizeof handle), XP_MOVE_GOOD);
    EQUAL(memcmp(before, raw, sizeof raw), 0);
}

int main(void)
{
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    RUN(test_keys);
    RUN(test_moved_messages);
    CHECK(unlink(path) == 0);
    return 0;
}
