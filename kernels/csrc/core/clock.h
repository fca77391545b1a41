// The decision of one cache step, in plain C++: which picked experts are hits, which misses are
// admitted, and which slots give way. Compiled by g++ (property tests) and nvcc (cache_step.cu);
// it allocates nothing and touches only the arrays it is given.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace glm53 {

constexpr int kMaxPicks = 256;  // rows * experts per token in one decode step

struct ClockAdmission {
    int32_t expert;  // admitted expert of this layer
    int32_t slot;    // the slot it takes
    int32_t evicted;  // key (layer * experts + expert) that lived there, or -1
};

struct ClockResult {
    int32_t hits, admitted, evicted, no_victim, invalid;
};

GLM53_HD bool bit_get(const uint32_t* bits, int i) { return (bits[i >> 5] >> (i & 31)) & 1u; }
GLM53_HD void bit_set(uint32_t* bits, int i) { bits[i >> 5] |= 1u << (i & 31); }
GLM53_HD void bit_clear(uint32_t* bits, int i) { bits[i >> 5] &= ~(1u << (i & 31)); }

// The next slot whose reference bit is clear and that is not busy, starting at *hand; reference
// bits passed on the way are cleared (the second chance). -1 when every slot is busy.
GLM53_HD int32_t clock_victim(uint32_t* referenced, const uint32_t* busy, int32_t slots, int32_t* hand) {
    for (int32_t probe = 0; probe < 2 * slots; ++probe) {
        const int32_t slot = *hand;
        *hand = slot + 1 == slots ? 0 : slot + 1;
        if (bit_get(busy, slot)) continue;
        if (!bit_get(referenced, slot)) return slot;
        bit_clear(referenced, slot);
    }
    return -1;
}

// One decode step of one layer.
//   picks[n]       expert ids, duplicates allowed; ids outside [0, experts) are counted and skipped
//   resident[n]    the slot of each pick's expert before the step, -1 if none
//   referenced     reference bits, updated          busy   slots that must stay, updated: on entry
//   the locked slots, on return also every slot that this step reads
//   owner          key of each slot or -1 (read only)
//   admit_limit    how many misses may be admitted; gpu_share in (0, 1] lowers it to that share of
//   the distinct misses, plus `dither`, rounded down
//   priority[n]    misses with the higher value are admitted first, pick order among equals
//   admissions     at most n entries
// A hit sets its reference bit. An admitted expert starts with its bit clear: it earns a second
// chance only by being picked again, so a run of one-time experts cannot push out the repeaters.
struct ClockPolicy {
    int32_t admit_limit;
    float gpu_share, dither;
};

GLM53_HD ClockResult clock_step(const int32_t* picks, const int32_t* resident, int32_t n, int32_t experts,
                                uint32_t* referenced, uint32_t* busy, const int32_t* owner, int32_t slots,
                                int32_t* hand, ClockPolicy policy, const uint32_t* priority,
                                ClockAdmission* admissions) {
    ClockResult result = {0, 0, 0, 0, 0};
    int16_t waiting[kMaxPicks];  // index of the first pick of each distinct miss
    int32_t misses = 0;
    for (int32_t i = 0; i < n; ++i) {
        if (picks[i] < 0 || picks[i] >= experts) {
            ++result.invalid;
        } else if (resident[i] >= 0) {
            if (!bit_get(busy, resident[i])) ++result.hits;
            bit_set(busy, resident[i]);
            bit_set(referenced, resident[i]);
        } else {
            bool seen = false;
            for (int32_t j = 0; j < misses && !seen; ++j) seen = picks[waiting[j]] == picks[i];
            if (!seen) waiting[misses++] = static_cast<int16_t>(i);
        }
    }
    const int32_t share = static_cast<int32_t>(misses * policy.gpu_share + policy.dither);
    const int32_t limit = share < policy.admit_limit ? share : policy.admit_limit;
    int32_t left = misses;
    while (left > 0 && result.admitted < limit) {
        int32_t best = 0;
        for (int32_t j = 1; j < left; ++j)
            if (priority[waiting[j]] > priority[waiting[best]]) best = j;
        const int32_t i = waiting[best];
        const int32_t slot = clock_victim(referenced, busy, slots, hand);
        if (slot < 0) break;
        --left;
        for (int32_t j = best; j < left; ++j) waiting[j] = waiting[j + 1];
        bit_set(busy, slot);
        result.evicted += owner[slot] >= 0;
        admissions[result.admitted++] = {picks[i], slot, owner[slot]};
    }
    result.no_victim = left;
    return result;
}

}  // namespace glm53
