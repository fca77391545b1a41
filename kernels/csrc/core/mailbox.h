// One decode job in pinned memory: written by the GPU, computed by the CPU tier, read back by the
// GPU. Every line of 64 bytes has one writer. Shared by g++ and nvcc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host_device.h"

namespace glm53 {

constexpr int kMailboxRows = 8;    // rows of a decode step
constexpr int kMailboxPicks = 256;  // rows * experts per token

struct alignas(64) Mailbox {
    alignas(64) uint32_t posted;  // device, written last: sequence number of the job below
    alignas(64) uint32_t done;    // host (or device, for an empty job): last finished sequence number
    alignas(64) uint32_t layer;   // device, from here on
    uint32_t rows;
    uint32_t picks;
    alignas(64) int32_t expert[kMailboxPicks];
    int32_t row[kMailboxPicks];
    float weight[kMailboxPicks];
};

// Behind the struct: x float [kMailboxRows][hidden], then out float [kMailboxRows][hidden].
GLM53_HD constexpr size_t mailbox_x(size_t) { return sizeof(Mailbox); }
GLM53_HD constexpr size_t mailbox_out(size_t hidden) { return sizeof(Mailbox) + kMailboxRows * hidden * 4; }
GLM53_HD constexpr size_t mailbox_bytes(size_t hidden) { return mailbox_out(hidden) + kMailboxRows * hidden * 4; }

}  // namespace glm53
