/* A libamdhip64 whose device is the simulator: the host shim and a simulated kernel meet here.
 *
 * Linked with one simulated kernel to a shared library; put first on the loader's path, it takes the place of the
 * real one. The environment steers it, as nothing else reaches a library loaded by another:
 *   GEMMILL_SIM_DEVICE  gcnArchName of the device; default: the kernel's arch, with feature suffixes
 *   GEMMILL_SIM_ORDER   forward, reverse or a seed; default: launches take turns, with a new seed each time
 *   GEMMILL_SIM_FAIL    NAME:N, the N-th call of that function fails (from 1)
 * gemmill_sim_live() counts allocations, modules and events that were not given back. */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "hip/hip_api.h"
#include "hip/sim/machine.h"

using namespace gemmill::hip;

extern "C" const sim::Kernel gemmill_simulated_kernel;

namespace {

constexpr int kPoison = 0xff;  // NaN in every format, so memory that a kernel did not write shows

const sim::Kernel& kernel = gemmill_simulated_kernel;
const char* const kArchNames[] = {"gfx90a", "gfx942", "gfx950"};
constexpr u8 kElfMachines[] = {0x3f, 0x4c, 0x4f};  // EF_AMDGPU_MACH_AMDGCN_* of those

struct State {
    std::mutex mutex;
    std::map<void*, size_t> allocations;
    std::map<std::string, int> calls;
    std::string violation;
    int modules = 0, events = 0;
} state;

const char* environment(const char* name, const char* otherwise) {
    const char* const value = std::getenv(name);
    return value && *value ? value : otherwise;
}

std::string device_name() {
    return environment("GEMMILL_SIM_DEVICE", (std::string(kArchNames[(int)kernel.arch]) + ":sramecc+:xnack-").c_str());
}

// The device's index in kArchNames, or -1.
int device_arch() {
    const std::string name = device_name();
    for (int i = 0; i < 3; ++i)
        if (name.substr(0, name.find(':')) == kArchNames[i]) return i;
    return -1;
}

bool must_fail(const char* function) {
    const int call = ++state.calls[function];
    const std::string wish = environment("GEMMILL_SIM_FAIL", "");
    return wish == std::string(function) + ":" + std::to_string(call);
}

// Is [p, p + bytes) device memory?
bool is_device(const void* p, size_t bytes) {
    auto after = state.allocations.upper_bound(const_cast<void*>(p));
    if (after == state.allocations.begin()) return false;
    --after;
    return static_cast<const char*>(p) + bytes <= static_cast<char*>(after->first) + after->second;
}

}  // namespace

struct ihipEvent_t {
    std::chrono::steady_clock::time_point time;
};

// Each function takes the lock, counts its call and fails if told to.
#define ENTER(error)                                         \
    const std::lock_guard<std::mutex> lock(state.mutex);     \
    if (must_fail(__func__)) return error

extern "C" {

int gemmill_sim_live() {
    const std::lock_guard<std::mutex> lock(state.mutex);
    return (int)state.allocations.size() + state.modules + state.events;
}

// Let kernels touch memory that this library did not allocate.
void gemmill_sim_add_memory(void* pointer, size_t bytes) { sim::add_memory(pointer, bytes); }

void gemmill_sim_reset_calls() {
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.calls.clear();
}

int gemmill_sim_calls(const char* function) {
    const std::lock_guard<std::mutex> lock(state.mutex);
    return state.calls[function];
}

const char* hipGetErrorString(hipError_t error) {
    switch (error) {
        case hipSuccess: return "no error";
        case hipErrorInvalidValue: return "invalid argument";
        case hipErrorOutOfMemory: return "out of memory";
        case hipErrorNoBinaryForGpu: return "no kernel image is available for execution on the device";
        case hipErrorNotFound: return "named symbol not found";
        case hipErrorLaunchFailure: return state.violation.empty() ? "launch failure" : state.violation.c_str();
        default: return "unknown error";
    }
}

hipError_t hipGetDevice(int* device) {
    ENTER(hipErrorUnknown);
    *device = 0;
    return hipSuccess;
}

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int) {
    ENTER(hipErrorUnknown);
    std::memset(properties, 0, sizeof *properties);
    std::snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s", device_name().c_str());
    return hipSuccess;
}

hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
    ENTER(hipErrorUnknown);
    const u8* const elf = static_cast<const u8*>(image);
    constexpr u8 EM_AMDGPU = 224;
    if (std::memcmp(elf, "\177ELF", 4) != 0 || elf[18] != EM_AMDGPU) return hipErrorInvalidValue;
    const int arch = device_arch();
    if (arch < 0 || elf[48] != kElfMachines[arch]) return hipErrorNoBinaryForGpu;
    ++state.modules;
    *module = reinterpret_cast<hipModule_t>(&state);
    return hipSuccess;
}

hipError_t hipModuleUnload(hipModule_t module) {
    ENTER(hipErrorUnknown);
    if (module != reinterpret_cast<hipModule_t>(&state) || state.modules == 0) return hipErrorInvalidValue;
    --state.modules;
    return hipSuccess;
}

hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t, const char* name) {
    ENTER(hipErrorNotFound);
    if (std::strcmp(name, kernel.name) != 0) return hipErrorNotFound;
    *function = reinterpret_cast<hipFunction_t>(const_cast<sim::Kernel*>(&kernel));
    return hipSuccess;
}

hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned, hipStream_t,
                                 void** parameters, void**) {
    ENTER(hipErrorLaunchFailure);
    const bool shape_is_right = block_x == kernel.threads && block_y == 1 && block_z == 1 && grid_z == 1;
    if (reinterpret_cast<const sim::Kernel*>(function) != &kernel || !shape_is_right || !grid_x || !grid_y)
        return hipErrorInvalidValue;
    const u64 turn = state.calls[__func__];
    const char* const turns[] = {"forward", "reverse"};
    const std::string order = environment("GEMMILL_SIM_ORDER", turn % 3 < 2 ? turns[turn % 3] : std::to_string(turn).c_str());
    sim::Launch launch = {&kernel, parameters[0], grid_x, grid_y, (Arch)device_arch(), sim::Order::random, 0};
    if (order == "forward") launch.order = sim::Order::forward;
    else if (order == "reverse") launch.order = sim::Order::reverse;
    else launch.seed = std::strtoull(order.c_str(), nullptr, 0);
    state.violation = sim::run(launch);
    return state.violation.empty() ? hipSuccess : hipErrorLaunchFailure;
}

hipError_t hipMalloc(void** pointer, size_t bytes) {
    ENTER(hipErrorOutOfMemory);
    *pointer = nullptr;
    if (bytes == 0) return hipSuccess;
    *pointer = std::malloc(bytes);
    if (!*pointer) return hipErrorOutOfMemory;
    std::memset(*pointer, kPoison, bytes);
    state.allocations[*pointer] = bytes;
    sim::add_memory(*pointer, bytes);
    return hipSuccess;
}

hipError_t hipFree(void* pointer) {
    ENTER(hipErrorUnknown);
    if (!pointer) return hipSuccess;
    if (!state.allocations.erase(pointer)) return hipErrorInvalidValue;
    sim::remove_memory(pointer);
    std::free(pointer);
    return hipSuccess;
}

hipError_t hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
    ENTER(hipErrorUnknown);
    if (bytes == 0) return hipSuccess;
    if (!is_device(kind == hipMemcpyHostToDevice ? to : from, bytes)) return hipErrorInvalidValue;
    std::memcpy(to, from, bytes);
    return hipSuccess;
}

hipError_t hipEventCreate(hipEvent_t* event) {
    ENTER(hipErrorOutOfMemory);
    *event = new ihipEvent_t{};
    ++state.events;
    return hipSuccess;
}

hipError_t hipEventDestroy(hipEvent_t event) {
    ENTER(hipErrorUnknown);
    --state.events;
    delete event;
    return hipSuccess;
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t) {
    ENTER(hipErrorUnknown);
    event->time = std::chrono::steady_clock::now();
    return hipSuccess;
}

hipError_t hipEventSynchronize(hipEvent_t) {
    ENTER(hipErrorLaunchFailure);
    return hipSuccess;
}

hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
    ENTER(hipErrorUnknown);
    *milliseconds = std::chrono::duration<float, std::milli>(stop->time - start->time).count();
    return hipSuccess;
}

hipError_t hipStreamSynchronize(hipStream_t) {
    ENTER(hipErrorLaunchFailure);
    return hipSuccess;
}

}  // extern "C"
