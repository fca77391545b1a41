// Addresses and table writes that every residency kernel shares.
#pragma once
#include "../core/cache_policy.h"
#include "abi_cuda.h"

namespace glm53 {

__device__ inline uint64_t home_of(const glm53_residency& state, int64_t key) {
    return state.home + static_cast<uint64_t>(key) * state.record_bytes;
}

// Point exllamav3's three tables of one expert at a record.
__device__ inline void point_tables(const glm53_residency& state, int layer, int expert, uint64_t record) {
    const uint64_t* tables = state.tables + 3 * layer;
    reinterpret_cast<uint64_t*>(tables[0])[expert] = record;
    reinterpret_cast<uint64_t*>(tables[1])[expert] = record + state.up_offset;
    reinterpret_cast<uint64_t*>(tables[2])[expert] = record + state.down_offset;
}

__device__ inline uint64_t residence_of(const glm53_residency& state, int64_t key) {
    const int32_t slot = state.slot_of[key];
    return slot >= 0 ? state.slot_address[slot] : home_of(state, key);
}

}  // namespace glm53
