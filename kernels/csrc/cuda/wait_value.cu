#include "wait_value.h"

#include <cuda_runtime.h>

#include "check.cuh"

namespace glm53 {
namespace {

using ValueOperation = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

ValueOperation find(const char* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
    return reinterpret_cast<ValueOperation>(function);
}

int enqueue(ValueOperation operation, void* stream, uint64_t address, uint32_t value, unsigned flags,
            const char* what) {
    if (operation == nullptr) return fail(what, "this driver has no stream memory operations");
    const CUresult status = operation(static_cast<CUstream>(stream), address, value, flags);
    return status == CUDA_SUCCESS ? 0 : fail(what, "the driver refused a stream memory operation");
}

}  // namespace

// GEQ compares cyclically, so the sequence may wrap.
int stream_wait(void* stream, uint64_t address, uint32_t value, const char* what) {
    static const ValueOperation operation = find("cuStreamWaitValue32");
    return enqueue(operation, stream, address, value, CU_STREAM_WAIT_VALUE_GEQ, what);
}

int stream_write(void* stream, uint64_t address, uint32_t value, const char* what) {
    static const ValueOperation operation = find("cuStreamWriteValue32");
    return enqueue(operation, stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT, what);
}

}  // namespace glm53
