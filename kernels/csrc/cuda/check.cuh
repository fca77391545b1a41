// Status and text of the last failure of this thread, shared by the launchers.
#pragma once
#include <cuda_runtime.h>

namespace glm53 {
int fail(const char* what, const char* why);
int check_launch(const char* what);

inline int check(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return 0;
    cudaGetLastError();  // a failed call must not surface in somebody else's launch check
    return fail(what, cudaGetErrorString(status));
}
}  // namespace glm53
