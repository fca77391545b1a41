// Copies of one look-ahead step, in pinned memory: decided by the GPU, issued by a host thread on the
// copy engine, taken in by the first step that finds them done.
#pragma once

#include <cstdint>

namespace glm53 {

constexpr int kCopyJobs = 16;  // experts looked ahead per step, at most

struct CopyJob {
    uint64_t source, destination;  // addresses of one expert record
};

struct alignas(64) CopyBox {
    alignas(64) uint32_t posted;  // device, written last: sequence number of the jobs below
    alignas(64) uint32_t count;   // device, from here on
    CopyJob jobs[kCopyJobs];
};

}  // namespace glm53
