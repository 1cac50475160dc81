/* Finds the functions of the CUDA driver when they are first called.
 *
 * Every function of the driver interface is a trampoline (trampolines.rs) that jumps through its entry in
 * libcuda_table. The entries start out pointing to code that calls libcuda_resolve(index) and then jumps to
 * what it returned with all argument registers restored, so no signature is needed here.
 *
 * LIBCUDA_COUNT, the names and the table come from the generated file that includes this one. */

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100, NOT_FOUND = 500 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;
static char failure[512];

static void load(void)
{
    /* Never closed: the driver's threads and exit handlers outlive any point at which we could. */
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *text = dlerror();
        strncpy(failure, text != NULL ? text : "dlopen failed without a reason", sizeof failure - 1);
    }
}

/* Why the driver's library could not be loaded, or NULL when it was. */
HIDDEN const char *libcuda_load_error(void)
{
    pthread_once(&once, load);
    return library != NULL ? NULL : failure;
}

/* Extra arguments are the caller's to clean up in the C calling conventions of the supported machines, so
 * one function stands in for all of them. */
static int no_driver(void)
{
    return NO_DEVICE;
}

static int not_in_this_driver(void)
{
    return NOT_FOUND;
}

/* Without a driver nobody knows the texts; an error or a null string here would make callers that format
 * an error fail in doing so. */
static int error_name(int code, const char **text)
{
    if (text == NULL)
        return INVALID_VALUE;
    *text = code == SUCCESS     ? "CUDA_SUCCESS"
          : code == NO_DEVICE   ? "CUDA_ERROR_NO_DEVICE"
                                : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}

static int error_string(int code, const char **text)
{
    if (text == NULL)
        return INVALID_VALUE;
    *text = code == SUCCESS     ? "no error"
          : code == NO_DEVICE   ? "no CUDA device: the driver library libcuda.so.1 could not be loaded"
                                : "an error of a CUDA driver that is not loaded";
    return SUCCESS;
}

HIDDEN void *libcuda_resolve(size_t index)
{
    void *target;
    pthread_once(&once, load);
    if (library != NULL) {
        target = dlsym(library, libcuda_names[index]);
        if (target == NULL)
            target = (void *)not_in_this_driver;
    } else if (strcmp(libcuda_names[index], "cuGetErrorName") == 0) {
        target = (void *)error_name;
    } else if (strcmp(libcuda_names[index], "cuGetErrorString") == 0) {
        target = (void *)error_string;
    } else {
        target = (void *)no_driver;
    }
    /* Two threads may get here for one function; both store the same address. */
    atomic_store_explicit(&libcuda_table[index], (uintptr_t)target, memory_order_release);
    return target;
}
