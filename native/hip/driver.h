/* libamdhip64, opened when first needed, so that a kernel library loads on machines without it.
 *
 * A process may hold one already, under any of its names (a framework brings its own): that one is taken, because two
 * HIP runtimes know nothing of each other's memory and streams. */
#pragma once

#include <dlfcn.h>
#include <pthread.h>

#include "host/error.h"
#include "hip/hip_api.h"

namespace gemmill {

struct Driver {
#define GEMMILL_MEMBER(type, name, parameters) type(*name) parameters;
    GEMMILL_HIP_FUNCTIONS(GEMMILL_MEMBER)
#undef GEMMILL_MEMBER
    bool open;
};

/* All of it is there, or none. */
inline Driver& driver() {
    static Driver the_driver = {};
    return the_driver;
}

inline int open_driver() {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    if (__atomic_load_n(&driver().open, __ATOMIC_ACQUIRE)) return GEMMILL_OK;
    struct Lock {
        Lock() { pthread_mutex_lock(&mutex); }
        ~Lock() { pthread_mutex_unlock(&mutex); }
    } lock;
    if (driver().open) return GEMMILL_OK;
    void* library = nullptr;
    const char* const names[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"};
    const int loaded_then_any[] = {RTLD_NOLOAD, 0};
    for (int flag : loaded_then_any)
        for (const char* name : names)
            if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL | flag);
    if (!library) {
        const char* const why = dlerror();
        return (Message() << "no HIP driver, needed is libamdhip64.so of ROCm 6 or later: " << (why ? why : ""))
            .device_error();
    }
    Driver found = {};
#define GEMMILL_LOOK_UP(type, name, parameters)                                                        \
    found.name = reinterpret_cast<type(*) parameters>(dlsym(library, #name));                          \
    if (!found.name) {                                                                                 \
        dlclose(library);                                                                              \
        return (Message() << "libamdhip64 has no " #name ": needed is ROCm 6 or later").device_error(); \
    }
    GEMMILL_HIP_FUNCTIONS(GEMMILL_LOOK_UP)
#undef GEMMILL_LOOK_UP
    /* `open` last: readers without the lock must see the rest. */
#define GEMMILL_COPY(type, name, parameters) driver().name = found.name;
    GEMMILL_HIP_FUNCTIONS(GEMMILL_COPY)
#undef GEMMILL_COPY
    __atomic_store_n(&driver().open, true, __ATOMIC_RELEASE);
    return GEMMILL_OK;
}

inline int failed(const char* call, hipError_t error) {
    return (Message() << call << " failed: " << driver().hipGetErrorString(error) << " (" << error << ")").device_error();
}

/* Return from the enclosing function if a driver call fails. */
#define GEMMILL_HIP(name, ...)                                                                   \
    do {                                                                                         \
        const hipError_t gemmill_hip_error = driver().name(__VA_ARGS__);                         \
        if (gemmill_hip_error != hipSuccess) return ::gemmill::failed(#name, gemmill_hip_error); \
    } while (0)

}  // namespace gemmill
