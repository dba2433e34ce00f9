/* Calls of functions of Unified Runtime by name, which `find` looks up. */
#define CALL(name, ...) (find(#name)(__VA_ARGS__))
#define MUST(name, ...)                                                                                                \
    do {                                                                                                               \
        uint32_t result_ = CALL(name, __VA_ARGS__);                                                                    \
        if (result_) {                                                                                                 \
            fprintf(stderr, #name ": %u\n", result_);                                                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
