// Stream-ordered waits and writes of one 32-bit word: no kernel polls, so none takes a place on the GPU.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace glm53 {
int stream_wait(void* stream, uint64_t address, uint32_t value, const char* what);
int stream_write(void* stream, uint64_t address, uint32_t value, const char* what);
}  // namespace glm53
