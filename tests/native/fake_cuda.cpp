// A libcuda whose memory is the host's: it counts calls, lets one fail, knows what is not given back, and hands every
// launch to a function of the test, which may compute it.
#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/traits.h"

namespace {

using gemmill::Conversions;
using gemmill::Params;
using Computing = void (*)(const char* entry, const void* params); // Params, or Conversions of gemmill_convert

struct Kernel {
    std::string name;
    int shared_bytes = 0;
};

struct Library {
    Kernel kernels[4] = {{"gemmill_fast"}, {"gemmill_scalar"}, {"gemmill_plain"}, {"gemmill_convert"}};
};

struct Stream {
    bool capturing = false;
    std::vector<std::function<void()>> captured;
};

// Everything is guarded by the mutex but the launches' computation.
std::recursive_mutex mutex;
std::map<std::string, int> calls;
std::string failing;
int failing_turn = 0;
CUresult failing_code = CUDA_SUCCESS;
std::map<char*, size_t> memory;
size_t used = 0;
int objects = 0; // events, streams, graphs, libraries, retained and created contexts
int devices = 1, major = 9, minor = 0;
Computing computing = nullptr;
CUlaunchConfig last_launch;
bool last_was_cluster = false;
int last_device = -1; // of the context that it was in
CUtensorMap last_maps[3];

constexpr size_t kMemory = size_t(1) << 34;
constexpr int kShared = 227 * 1024;

// A context is the address of a device's slot, or what cuCtxCreate made.
struct Context {
    int device;
};
Context primaries[4] = {{0}, {1}, {2}, {3}};
thread_local std::vector<Context*> stack;

using Lock = std::lock_guard<std::recursive_mutex>;

CUresult called(const char* name) {
    Lock lock(mutex);
    const int turn = ++calls[name];
    return failing == name && failing_turn == turn ? failing_code : CUDA_SUCCESS;
}

Context* current() { return stack.empty() ? nullptr : stack.back(); }

// Whether an address lies in memory that was allocated and not freed.
bool allocated(const void* address, size_t bytes = 1) {
    Lock lock(mutex);
    auto* at = static_cast<char*>(const_cast<void*>(address));
    auto block = memory.upper_bound(at);
    if (block == memory.begin()) return false;
    --block;
    return at >= block->first && at + bytes <= block->first + block->second;
}

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

template <class T>
T handle(void* object) {
    Lock lock(mutex);
    ++objects;
    return reinterpret_cast<T>(object);
}

void dropped() {
    Lock lock(mutex);
    --objects;
}

}  // namespace

#define CALLED(name) \
    if (const CUresult result = called(name)) return result
#define NEED_CONTEXT \
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT

extern "C" {

// ---- The test's side ----

void fake_fail(const char* name, int turn, int code) {
    Lock lock(mutex);
    calls.clear();
    failing = name;
    failing_turn = turn;
    failing_code = static_cast<CUresult>(code);
}
int fake_calls(const char* name) {
    Lock lock(mutex);
    return calls[name];
}
int fake_live() {
    Lock lock(mutex);
    return static_cast<int>(memory.size()) + objects;
}
int fake_stack() { return static_cast<int>(stack.size()); }
void fake_devices(int count, int capability_major, int capability_minor) {
    devices = count, major = capability_major, minor = capability_minor;
}
void fake_compute(Computing function) { computing = function; }
unsigned fake_grid() { return last_launch.gridDimX; }
int fake_cluster() { return last_was_cluster; }
int fake_launch_device() { return last_device; }
void fake_maps(CUtensorMap* out) { std::memcpy(out, last_maps, sizeof last_maps); }

// ---- The driver's ----

CUresult cuInit(unsigned) {
    CALLED("cuInit");
    return devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult cuGetErrorName(CUresult, const char** name) { return *name = "CUDA_ERROR_FAKE", CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) { return *text = "a fake error", CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    CALLED("cuDeviceGet");
    return *device = ordinal, ordinal < devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetCount(int* count) {
    CALLED("cuDeviceGetCount");
    return *count = devices, CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
    CALLED("cuDeviceGetName");
    std::strncpy(name, device ? "Fake 1" : "Fake 0", static_cast<size_t>(size));
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    CALLED("cuDeviceGetAttribute");
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? major
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? minor
                                                                         : 132;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    CALLED("cuDevicePrimaryCtxRetain");
    return *context = handle<CUcontext>(&primaries[device]), CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) {
    CALLED("cuDevicePrimaryCtxRelease");
    return dropped(), CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    CALLED("cuCtxGetCurrent");
    return *context = reinterpret_cast<CUcontext>(current()), CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    if (!stack.empty()) stack.pop_back();
    if (context) stack.push_back(reinterpret_cast<Context*>(context));
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
    CALLED("cuCtxGetDevice");
    NEED_CONTEXT;
    return *device = current()->device, CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
    CALLED("cuCtxPushCurrent");
    return stack.push_back(reinterpret_cast<Context*>(context)), CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
    NEED_CONTEXT;
    *context = reinterpret_cast<CUcontext>(current());
    stack.pop_back();
    return called("cuCtxPopCurrent");
}
CUresult fake_create_context(CUcontext* context) {
    auto* made = new Context{0};
    *context = handle<CUcontext>(made);
    return stack.push_back(made), CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext context) {
    if (current() == reinterpret_cast<Context*>(context)) stack.pop_back();
    delete reinterpret_cast<Context*>(context);
    return dropped(), CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
    NEED_CONTEXT;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned) {
    CALLED("cuLibraryLoadData");
    return *library = handle<CUlibrary>(new Library), CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary library) {
    CALLED("cuLibraryUnload");
    delete reinterpret_cast<Library*>(library);
    return dropped(), CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    CALLED("cuLibraryGetKernel");
    for (Kernel& one : reinterpret_cast<Library*>(library)->kernels)
        if (one.name == name) return *kernel = reinterpret_cast<CUkernel>(&one), CUDA_SUCCESS;
    return CUDA_ERROR_NOT_FOUND;
}
CUresult cuKernelSetAttribute(CUfunction_attribute, int value, CUkernel kernel, CUdevice) {
    CALLED("cuKernelSetAttribute");
    if (value > kShared) return CUDA_ERROR_INVALID_VALUE;
    return reinterpret_cast<Kernel*>(kernel)->shared_bytes = value, CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void* base, const cuuint64_t* size,
                                const cuuint64_t* pitch, const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    CALLED("cuTensorMapEncodeTiled");
    // What the manual asks of a two-dimensional map of bytes.
    const bool fits = reinterpret_cast<uintptr_t>(base) % 16 == 0 && pitch[0] % 16 == 0 && pitch[0] < (1ull << 40) &&
                      size[0] >= 1 && size[1] >= 1 && size[0] <= (1ull << 32) && size[1] <= (1ull << 32) &&
                      box[0] % 16 == 0 && box[0] <= 256 && box[1] >= 1 && box[1] <= 256;
    if (!fits) return CUDA_ERROR_INVALID_VALUE;
    *map = {};
    const uint64_t said[] = {reinterpret_cast<uintptr_t>(base), size[0], size[1], pitch[0], box[0], box[1], swizzle};
    std::memcpy(map, said, sizeof said);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void**) {
    CALLED("cuLaunchKernelEx");
    NEED_CONTEXT;
    const auto* kernel = reinterpret_cast<const Kernel*>(function);
    const bool converts = kernel->name == "gemmill_convert";
    bool cluster = false;
    unsigned per_cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            cluster = true, per_cluster = config->attrs[i].value.clusterDim.x;
    if (!config->gridDimX || config->gridDimX % per_cluster || config->blockDimX % 128 || config->blockDimX < (converts ? 128 : 256) ||
        config->sharedMemBytes > static_cast<unsigned>(kernel->shared_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    const void* given = converts ? arguments[0] : arguments[3]; // after three tensor maps
    std::string params(static_cast<const char*>(given), converts ? sizeof(Conversions) : sizeof(Params));
    const auto run = [name = kernel->name, params = std::move(params)] {
        if (computing) computing(name.c_str(), params.data());
    };
    Lock lock(mutex);
    last_launch = *config;
    last_was_cluster = cluster;
    last_device = current()->device;
    for (int i = 0; i < 3 && !converts; ++i) std::memcpy(&last_maps[i], arguments[i], sizeof(CUtensorMap));
    auto* stream = reinterpret_cast<Stream*>(config->hStream);
    if (stream && stream->capturing) return stream->captured.push_back(run), CUDA_SUCCESS;
    return run(), CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* names, void** values, CUdeviceptr address) {
    CALLED("cuPointerGetAttributes");
    const bool known = allocated(pointer(address));
    for (unsigned i = 0; i < count; ++i)
        *static_cast<int*>(values[i]) = names[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE      ? known ? CU_MEMORYTYPE_DEVICE : 0
                                        : names[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? known ? 0 : -2
                                                                                          : 0;
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute name, CUdeviceptr address) {
    if (!allocated(pointer(address))) return CUDA_ERROR_INVALID_VALUE;
    return cuPointerGetAttributes(1, &name, &value, address);
}
CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    CALLED("cuMemAlloc");
    NEED_CONTEXT;
    Lock lock(mutex);
    if (bytes > kMemory - used) return CUDA_ERROR_OUT_OF_MEMORY;
    auto* block = static_cast<char*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    memory[block] = bytes;
    used += bytes;
    return *address = reinterpret_cast<CUdeviceptr>(block), CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
    CALLED("cuMemFree");
    Lock lock(mutex);
    const auto block = memory.find(static_cast<char*>(pointer(address)));
    if (block == memory.end()) return CUDA_ERROR_INVALID_VALUE;
    used -= block->second;
    std::free(block->first);
    return memory.erase(block), CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t* free, size_t* total) { return *free = kMemory - used, *total = kMemory, CUDA_SUCCESS; }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
    CALLED("cuMemcpyHtoD");
    if (!allocated(pointer(to), bytes)) return CUDA_ERROR_INVALID_VALUE;
    return std::memcpy(pointer(to), from, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
    CALLED("cuMemcpyDtoH");
    if (!allocated(pointer(from), bytes)) return CUDA_ERROR_INVALID_VALUE;
    return std::memcpy(to, pointer(from), bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
    if (!allocated(pointer(to), bytes) || !allocated(pointer(from), bytes)) return CUDA_ERROR_INVALID_VALUE;
    return std::memcpy(pointer(to), pointer(from), bytes), CUDA_SUCCESS;
}
CUresult cuMemsetD8(CUdeviceptr to, unsigned char byte, size_t bytes) {
    if (!allocated(pointer(to), bytes)) return CUDA_ERROR_INVALID_VALUE;
    return std::memset(pointer(to), byte, bytes), CUDA_SUCCESS;
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char byte, size_t width, size_t height, CUstream) {
    CALLED("cuMemsetD2D8Async");
    for (size_t row = 0; row < height; ++row)
        if (cuMemsetD8(to + row * pitch, byte, width) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned) {
    CALLED("cuEventCreate");
    static char one;
    return *event = handle<CUevent>(&one), CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent) {
    CALLED("cuEventDestroy");
    return dropped(), CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent, CUstream) {
    CALLED("cuEventRecord");
    return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned flags) {
    CALLED("cuStreamWaitEvent");
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent) {
    CALLED("cuEventSynchronize");
    return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
    CALLED("cuEventElapsedTime");
    return *milliseconds = 6, CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned) { return *stream = handle<CUstream>(new Stream), CUDA_SUCCESS; }
CUresult cuStreamDestroy(CUstream stream) {
    delete reinterpret_cast<Stream*>(stream);
    return dropped(), CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) {
    CALLED("cuStreamSynchronize");
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
    return reinterpret_cast<Stream*>(stream)->capturing = true, CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    auto* captured = reinterpret_cast<Stream*>(stream);
    captured->capturing = false;
    *graph = handle<CUgraph>(new std::vector<std::function<void()>>(std::move(captured->captured)));
    return captured->captured.clear(), CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
    return *executable = handle<CUgraphExec>(graph), CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream) {
    for (const auto& run : *reinterpret_cast<std::vector<std::function<void()>>*>(executable)) run();
    return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec) { return dropped(), CUDA_SUCCESS; }
CUresult cuGraphDestroy(CUgraph graph) {
    delete reinterpret_cast<std::vector<std::function<void()>>*>(graph);
    return dropped(), CUDA_SUCCESS;
}

// Its version since CUDA 13 takes more.
CUresult fake_ctx_create(CUcontext* context, unsigned, CUdevice) __asm__("cuCtxCreate_v2");
CUresult fake_ctx_create(CUcontext* context, unsigned, CUdevice) { return fake_create_context(context); }

}  // extern "C"
