// A stream-ordered wait for one 32-bit word: no kernel polls, so none takes a place on the GPU. The word
// must be written by the processor or by what was enqueued before: streams share hardware queues.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace glm53 {
int stream_wait(void* stream, uint64_t address, uint32_t value, const char* what);
// Write it, behind everything that was enqueued before.
int stream_write(void* stream, uint64_t address, uint32_t value, const char* what);
}  // namespace glm53
