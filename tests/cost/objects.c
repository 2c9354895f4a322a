/* Counts what Python's allocator of objects is asked for, in memory that another process reads.
 *
 * Python's headers are not needed: this is the struct as it is documented, and the two functions that go with it.
 */
#include <stddef.h>
#include <stdint.h>

struct allocator {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

extern void PyMem_GetAllocator(int domain, struct allocator *found);
extern void PyMem_SetAllocator(int domain, struct allocator *taken);

enum { OBJECTS = 2 };

static struct allocator before;
static volatile uint64_t *made;

static void *count_malloc(void *context, size_t size) {
    ++*made;
    return before.malloc(context, size);
}

static void *count_calloc(void *context, size_t count, size_t size) {
    ++*made;
    return before.calloc(context, count, size);
}

/* Whoever calls holds the interpreter lock, as everybody does who asks this allocator. */
void count_objects(uint64_t *counter) {
    made = counter;
    PyMem_GetAllocator(OBJECTS, &before);
    struct allocator counting = before;
    counting.malloc = count_malloc;
    counting.calloc = count_calloc;
    PyMem_SetAllocator(OBJECTS, &counting);
}
