/* Exports an array of four rows of three numbers, without any Python: exporter KEY-FILE BOOT NAMES, the last two in
 * hexadecimal. It prints the message of the array in hexadecimal, and keeps the array until its input ends. */
#include "exporting.h"

#define TEXT "[[[\"<i4\",4]],0]"

static void read_hex(const char *text, uint8_t *to, size_t nbytes)
{
    CHECK(strlen(text) == 2 * nbytes);
    for (size_t i = 0; i < nbytes; i++)
        CHECK(sscanf(text + 2 * i, "%2hhx", &to[i]) == 1);
}

/* The message of one array of `rows` times `columns` numbers in the memory of that handle. */
static size_t write_message(uint8_t *raw, const xp_key *key, const xp_handle *h, uint64_t rows, uint64_t columns)
{
    uint64_t dims[] = {rows, columns, columns * 4, 4};
    xp_leaf leaf = {.ndim = 2};
    xp_message head = {.version = XP_MESSAGE_VERSION, .memory = 1, .arrays = 1, .steps = 4, .text_nbytes = sizeof TEXT - 1};
    memcpy(head.magic, XP_MESSAGE_MAGIC, sizeof head.magic);
    head.length = sizeof head + sizeof *h + sizeof leaf + sizeof dims + head.text_nbytes + XP_SEAL;
    const struct { const void *at; size_t nbytes; } parts[] = {
        {&head, sizeof head}, {h, sizeof *h}, {&leaf, sizeof leaf}, {dims, sizeof dims}, {TEXT, head.text_nbytes}};
    uint8_t *end = raw;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; end += parts[i++].nbytes)
        memcpy(end, parts[i].at, parts[i].nbytes);
    CHECK(xp_seal_message(key, raw, head.length));
    return head.length;
}

int main(int argc, char **argv)
{
    uint8_t bytes[32], raw[1024];
    xp_key key;
    xp_error wrong;
    xp_export_error error;
    xp_handle h;
    CHECK(argc == 4);
    xp_engine_init();
    xp_domain *d = new_commons();
    xp_exports *t = new_exports(d);
    uint32_t detail;
    EQUAL(xp_read_key(argv[1], bytes, &detail), XP_KEY_GOOD);
    xp_make_key(&key, bytes, XP_KEY_NBYTES);
    read_hex(argv[2], t->common.boot_id, sizeof t->common.boot_id);
    read_hex(argv[3], bytes, sizeof bytes);
    memcpy(t->base + XP_TABLE_DEVICES, bytes, sizeof bytes);
    CHECK(xp_serve((xp_table *)t->base, table_fd, d, NULL, &wrong));
    int fd = memfd(BLOCK, F_SEAL_SHRINK | F_SEAL_GROW);
    int32_t *numbers = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(numbers != MAP_FAILED);
    for (int32_t i = 0; i < 12; i++)
        numbers[4 + i] = 100 + i; /* from byte 16 on */
    xp_template p = memory_template(t, fd, bytes, BLOCK, 1);
    xp_export e = {.template = &p, .offset = 16, .nbytes = 48};
    CHECK(xp_export_reserve(t, &key, &e, -1, 0, true, &h, &error));
    xp_export_publish(t, &e);
    size_t nbytes = write_message(raw, &key, &h, 4, 3);
    for (size_t i = 0; i < nbytes; i++)
        printf("%02x", raw[i]);
    printf("\n");
    fflush(stdout);
    CHECK(getchar() == 'r'); /* the importer has written, and holds the array still */
    EQUAL(numbers[4], 7);
    uint32_t found[XP_MEMBERS];
    EQUAL(xp_holders(d, e.entry, found), 1);
    EQUAL(xp_export_end(t, &e, XP_REASON_PUT), XP_EXPORT_GOOD);
    CHECK(xp_export_release(t, &e, NULL));
    printf("ended\n");
    fflush(stdout);
    EQUAL(getchar(), EOF);
    xp_loop_stop();
    leave(d);
    return 0;
}
