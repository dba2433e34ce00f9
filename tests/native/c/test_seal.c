/* The key's file, what is wrong with handles and messages, and messages that are sealed anew. */
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

static xp_handle a_handle(const xp_key *k, uint16_t kind, uint32_t entry)
{
    xp_handle h = {.magic = XP_HANDLE_MAGIC, .version = XP_VERSION, .kind = kind, .entry = entry, .nbytes = 64};
    xp_hash(k, &h, offsetof(xp_handle, seal), h.seal);
    return h;
}

static void test_handles(void)
{
    static const uint8_t boot[16], other_boot[16] = {1};
    xp_key k, wrong;
    xp_handle h, found;
    xp_make_key(&k, "key", 3);
    xp_make_key(&wrong, "kez", 3);
    const xp_handle good = a_handle(&k, XP_KIND_EVENT, 3);
    EQUAL(xp_read_handle(&k, &good, sizeof good, boot, &found), XP_FLAWLESS);
    CHECK(memcmp(&found, &good, sizeof good) == 0 && !xp_read_handle(&k, &good, sizeof good, NULL, &found));
    EQUAL(xp_read_handle(&k, &good, sizeof good - 1, boot, &found), XP_FLAW_HANDLE_LENGTH);
    EQUAL(xp_read_handle(&wrong, &good, sizeof good, boot, &found), XP_FLAW_HANDLE_SEAL);
    EQUAL(xp_read_handle(&k, &good, sizeof good, other_boot, &found), XP_FLAW_HANDLE_BOOT);
    h = good;
    h.magic[7] = 'F';
    EQUAL(xp_read_handle(&wrong, &h, sizeof h, boot, &found), XP_FLAW_HANDLE_MAGIC);
    h = good;
    h.version++;
    EQUAL(xp_read_handle(&wrong, &h, sizeof h, boot, &found), XP_FLAW_HANDLE_VERSION);
    h = a_handle(&k, XP_KIND_EVENT + 1, 3);
    EQUAL(xp_read_handle(&k, &h, sizeof h, other_boot, &found), XP_FLAW_HANDLE_VALUES);
    h = a_handle(&k, XP_KIND_EVENT, XP_ENTRIES);
    EQUAL(xp_read_handle(&k, &h, sizeof h, boot, &found), XP_FLAW_HANDLE_VALUES);
}

/* A message of one handle of memory, one of an event, and one array. */
static struct whole {
    xp_message head;
    xp_handle memory, event;
    uint64_t point;
    xp_leaf leaf;
    uint64_t length, stride;
    uint8_t text[8], seal[XP_SEAL];
} whole;

static void set_up(const xp_key *k)
{
    whole = (struct whole){.memory = a_handle(k, XP_KIND_MEMORY, 3), .event = a_handle(k, XP_KIND_EVENT, 4),
                           .leaf = {.event = 1, .ndim = 1, .offset = 8}, .length = 7, .stride = 8,
                           .head = {.magic = XP_MESSAGE_MAGIC, .version = XP_MESSAGE_VERSION, .length = sizeof whole,
                                    .memory = 1, .events = 1, .arrays = 1, .steps = 2, .text_nbytes = 8}};
}

static void expect_flaw(const xp_key *k, xp_flaw flaw, uint32_t at)
{
    static const uint8_t boot[16];
    xp_parts m;
    uint32_t where;
    xp_seal_message(k, &whole, sizeof whole);
    EQUAL(xp_read_message(k, &whole, sizeof whole, boot, &m, &where), flaw);
    CHECK(flaw == XP_FLAWLESS || where == at);
    set_up(k);
}

static void expect_leaf_flaw(const xp_key *k, xp_flaw flaw, uint32_t leaf)
{
    static const uint32_t itemsize = 8;
    xp_parts m;
    uint32_t found;
    CHECK(xp_parts_of(&whole, sizeof whole, &m));
    EQUAL(xp_read_leaves(&m, &itemsize, 1, &found), flaw);
    EQUAL(found, leaf);
    set_up(k);
}

static void test_messages(void)
{
    const uint32_t memory = offsetof(struct whole, memory), event = offsetof(struct whole, event);
    xp_parts m;
    uint32_t at;
    xp_key k, wrong;
    xp_make_key(&k, "key", 3);
    xp_make_key(&wrong, "kez", 3);
    set_up(&k);
    expect_flaw(&k, XP_FLAWLESS, 0);
    EQUAL(xp_read_message(&k, &whole.memory, sizeof whole.memory, NULL, &m, &at), XP_FLAW_MESSAGE_HANDLE);
    EQUAL(xp_read_message(&wrong, &whole.memory, sizeof whole.memory, NULL, &m, &at), XP_FLAW_HANDLE_SEAL);
    EQUAL(xp_read_message(&k, "XPUSHARE", 8, NULL, &m, &at), XP_FLAW_MESSAGE_MAGIC);
    EQUAL(xp_read_message(&k, "XPUSHARE", 7, NULL, &m, &at), XP_FLAW_MESSAGE_LENGTH);
    EQUAL(xp_read_message(&k, &whole, sizeof whole - 1, NULL, &m, &at), XP_FLAW_MESSAGE_SEAL);
    EQUAL(xp_read_message(&k, &whole, sizeof whole, NULL, &m, &at), XP_FLAW_MESSAGE_SEAL); /* not sealed */
    whole.head.version++;
    expect_flaw(&wrong, XP_FLAW_MESSAGE_VERSION, 0);
    set_up(&k);
    whole.head.length++;
    expect_flaw(&k, XP_FLAW_MESSAGE_SEAL, 0);
    whole.head.reserved1 = 1;
    expect_flaw(&k, XP_FLAW_MESSAGE_VALUES, 0);
    whole.memory.entry ^= 1;
    expect_flaw(&k, XP_FLAW_HANDLE_SEAL, memory);
    whole.memory = whole.event;
    expect_flaw(&k, XP_FLAW_MESSAGE_KIND, memory);
    whole.event = whole.memory;
    expect_flaw(&k, XP_FLAW_MESSAGE_KIND, event);
    whole.event.cookie[0] = 1;
    xp_hash(&k, &whole.event, offsetof(xp_handle, seal), whole.event.seal);
    expect_flaw(&k, XP_FLAW_MESSAGE_EXPORTER, event);
    whole.event.boot_id[0] = 1;
    xp_hash(&k, &whole.event, offsetof(xp_handle, seal), whole.event.seal);
    expect_flaw(&k, XP_FLAW_HANDLE_BOOT, event);
    whole.point = XP_POINT_MAX + 1;
    expect_flaw(&k, XP_FLAW_MESSAGE_POINT, event);

    expect_leaf_flaw(&k, XP_FLAWLESS, 1);
    whole.leaf.memory = 1;
    expect_leaf_flaw(&k, XP_FLAW_LEAF_PART, 0);
    whole.length = UINT64_MAX;
    expect_leaf_flaw(&k, XP_FLAW_LEAF_SHAPE, 0);
    whole.leaf.offset = 9;
    expect_leaf_flaw(&k, XP_FLAW_LEAF_BYTES, 0);
    whole.leaf.offset = UINT64_MAX;
    expect_leaf_flaw(&k, XP_FLAW_LEAF_BYTES, 0);
    whole.leaf.ndim = 0;
    expect_leaf_flaw(&k, XP_FLAW_LEAF_REST, 1);
}

static void test_moved_messages(void)
{
    xp_key k, wrong;
    xp_parts m;
    uint32_t at;
    xp_make_key(&k, "key", 3);
    xp_make_key(&wrong, "kez", 3);
    set_up(&k);
    const xp_handle handle = whole.memory, other = a_handle(&k, XP_KIND_MEMORY, 4);
    CHECK(!xp_seal_message(&k, &whole, sizeof whole - 1) && xp_seal_message(&k, &whole, sizeof whole));
    const struct whole before = whole;
    EQUAL(xp_read_message(&wrong, &whole, sizeof whole, NULL, &m, &at), XP_FLAW_MESSAGE_SEAL);
    EQUAL(xp_move_message(&wrong, &whole, sizeof whole, &other, sizeof other), XP_MOVE_NOT_SEALED);
    EQUAL(xp_move_message(&k, &whole, sizeof whole, &other, sizeof other - 1), XP_MOVE_OTHER_COUNT);
    EQUAL(memcmp(&before, &whole, sizeof whole), 0);
    EQUAL(xp_move_message(&k, &whole, sizeof whole, &other, sizeof other), XP_MOVE_GOOD);
    EQUAL(xp_read_message(&k, &whole, sizeof whole, NULL, &m, &at), XP_FLAWLESS);
    CHECK(memcmp(m.memory, &other, sizeof other) == 0 && memcmp(before.seal, whole.seal, XP_SEAL) != 0);
    EQUAL(xp_move_message(&k, &whole, sizeof whole, &handle, sizeof handle), XP_MOVE_GOOD);
    EQUAL(memcmp(&before, &whole, sizeof whole), 0);
}

int main(void)
{
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    RUN(test_keys);
    RUN(test_handles);
    RUN(test_messages);
    RUN(test_moved_messages);
    CHECK(unlink(path) == 0);
    return 0;
}
