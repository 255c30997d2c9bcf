#define EXPORT __attribute__((visibility("default")))
