// Errors, versions, pinned host memory and copies: the parts of the ABI that launch nothing.
#include <cstdio>

#include "abi_cuda.h"
#include "check.cuh"

namespace glm53 {

static thread_local char last_error[256] = "";

int fail(const char* what, const char* why) {
    std::snprintf(last_error, sizeof last_error, "%s: %s", what, why);
    return 1;
}

int check_launch(const char* what) { return check(cudaGetLastError(), what); }

}  // namespace glm53

using namespace glm53;

extern "C" const char* glm53_cuda_last_error(void) { return last_error; }
#ifndef GLM53_SOURCE_HASH
#error "build with python -m glm53_kernels.build: it passes the hash of the sources"
#endif

extern "C" const char* glm53_cuda_build_id(void) { return "glm53-source:" GLM53_SOURCE_HASH; }
extern "C" uint32_t glm53_cuda_abi_version(void) { return GLM53_CUDA_ABI_VERSION; }
extern "C" uint32_t glm53_cuda_sizeof_residency(void) { return sizeof(glm53_residency); }
extern "C" uint32_t glm53_cuda_sizeof_step(void) { return sizeof(glm53_step); }

extern "C" int glm53_host_register(uint64_t pointer, uint64_t bytes, uint64_t* device_alias) {
    void* host = reinterpret_cast<void*>(pointer);
    if (check(cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister"))
        return 1;
    void* device = nullptr;
    if (check(cudaHostGetDevicePointer(&device, host, 0), "cudaHostGetDevicePointer")) return 1;
    *device_alias = reinterpret_cast<uint64_t>(device);
    return 0;
}

extern "C" int glm53_host_unregister(uint64_t pointer) {
    return check(cudaHostUnregister(reinterpret_cast<void*>(pointer)), "cudaHostUnregister");
}

extern "C" int glm53_copy_async(uint64_t destination, uint64_t source, uint64_t bytes, void* stream) {
    return check(cudaMemcpyAsync(reinterpret_cast<void*>(destination), reinterpret_cast<const void*>(source), bytes,
                                 cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)),
                 "cudaMemcpyAsync");
}
