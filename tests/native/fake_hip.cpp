// A libamdhip64 that computes nothing: memory is the host's, and every launch is written down.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hip/hip_api.h"

namespace {

struct Launch {
    char function[256];
    unsigned grid[3], threads;
    unsigned char arguments[256];
};

std::vector<std::string*> functions;  // their addresses are the handles
std::vector<Launch> launches;

}  // namespace

extern "C" {

int fake_launch_count() { return static_cast<int>(launches.size()); }
const Launch* fake_launch(int i) { return &launches[static_cast<size_t>(i)]; }

const char* hipGetErrorString(hipError_t) { return "fake error"; }
hipError_t hipGetDevice(int* device) { return *device = 0; }
hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int) {
    std::memset(properties, 0, sizeof *properties);
    std::strcpy(properties->gcnArchName, std::getenv("FAKE_ARCH"));
    return 0;
}
hipError_t hipModuleLoadData(hipModule_t* module, const void*) {
    *module = reinterpret_cast<hipModule_t>(&launches);
    return 0;
}
hipError_t hipModuleUnload(hipModule_t) { return 0; }
hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t, const char* name) {
    functions.push_back(new std::string(name));
    *function = reinterpret_cast<hipFunction_t>(functions.back());
    return 0;
}
hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                                 unsigned, unsigned, hipStream_t, void** parameters, void**) {
    Launch launch = {{}, {x, y, z}, threads, {}};
    std::strncpy(launch.function, reinterpret_cast<std::string*>(function)->c_str(), sizeof launch.function - 1);
    // The two small kernels take Rows (48 bytes), the others what a Plan holds.
    const bool small = std::strstr(launch.function, "_zero") || std::strstr(launch.function, "_permute");
    std::memcpy(launch.arguments, parameters[0], small ? 48 : sizeof launch.arguments);
    launches.push_back(launch);
    return 0;
}
hipError_t hipMalloc(void** pointer, size_t bytes) { return *pointer = std::aligned_alloc(256, (bytes + 511) / 256 * 256), 0; }
hipError_t hipFree(void* pointer) { return std::free(pointer), 0; }
hipError_t hipMemcpy(void* to, const void* from, size_t bytes, int) { return std::memcpy(to, from, bytes), 0; }
hipError_t hipEventCreate(hipEvent_t* event) { return *event = nullptr, 0; }
hipError_t hipEventDestroy(hipEvent_t) { return 0; }
hipError_t hipEventRecord(hipEvent_t, hipStream_t) { return 0; }
hipError_t hipEventSynchronize(hipEvent_t) { return 0; }
hipError_t hipEventElapsedTime(float* time, hipEvent_t, hipEvent_t) { return *time = 1, 0; }
hipError_t hipStreamSynchronize(hipStream_t) { return 0; }

}  // extern "C"
