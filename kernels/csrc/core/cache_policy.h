// The decision of one cache step, in plain C++: which picked experts are hits, which misses are
// admitted, and which slots give way. Compiled by g++ (property tests) and nvcc (cache_step.cu);
// it allocates nothing and touches only the arrays it is given. The rule is LFRU over a sample: of the
// next slots behind a hand, the one goes whose expert has the least aged picks over steps since the last.
// Integers only, so that every compiler and the model in Python decide alike.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace glm53 {

constexpr int kMaxPicks = 256;  // rows * experts per token in one decode step
constexpr int kWindow = 16;     // slots that a victim is chosen from
constexpr uint32_t kHalfLife = 64;            // decode steps
constexpr uint32_t kOnePick = 1u << 16;       // heat of one pick
constexpr uint32_t kMostHeat = 0x7fffffffu;   // also a positive int32

struct Admission {
    int32_t expert;  // admitted expert of this layer
    int32_t slot;    // the slot it takes
    int32_t evicted;  // key (layer * experts + expert) that lived there, or -1; see decide
};

struct StepResult {
    int32_t hits, admitted, evicted, no_victim, invalid;
};

GLM53_HD bool bit_get(const uint32_t* bits, int i) { return (bits[i >> 5] >> (i & 31)) & 1u; }
GLM53_HD void bit_set(uint32_t* bits, int i) { bits[i >> 5] |= 1u << (i & 31); }

// heat * 2 ** (32 - age / kHalfLife). Within a half-life a parabola stands for the power: it meets it at
// both ends and is never more than 0.33 % off.
GLM53_HD uint64_t fine_heat(uint32_t heat, uint32_t age) {
    const uint32_t halvings = age / kHalfLife, rest = age % kHalfLife;
    const uint32_t kept = (1u << 16) - (rest * (44032u - 176u * rest) >> 6);
    return halvings < 64 ? (static_cast<uint64_t>(heat) * kept << 16) >> halvings : 0;
}

// Heat that was brought up to date `age` steps ago, now.
GLM53_HD uint32_t aged_heat(uint32_t heat, uint32_t age) { return static_cast<uint32_t>(fine_heat(heat, age) >> 32); }

// Heat after so many picks in this step.
GLM53_HD uint32_t heat_after(uint32_t aged, int32_t picks) {
    const uint64_t heat = aged + static_cast<uint64_t>(picks) * kOnePick;
    return heat < kMostHeat ? static_cast<uint32_t>(heat) : kMostHeat;
}

// How often picks[i] occurs, 0 if it occurred before: of several picks of one expert, one counts them all.
GLM53_HD int32_t count_at_first(const int32_t* picks, int32_t n, int32_t i) {
    int32_t count = 0;
    for (int32_t j = 0; j < n; ++j) {
        if (picks[j] != picks[i]) continue;
        if (j < i) return 0;
        ++count;
    }
    return count;
}

// How much a slot is worth keeping: 0 when it is empty. `last` is the step of a key's last pick, which may
// wrap; heat is as of then.
struct SlotWarmth {
    const int32_t* owner;  // [slots] key or -1
    const uint32_t* heat;  // [keys]
    const uint32_t* last;  // [keys]
    uint32_t now;
    int32_t slots;
    // Measured before: the warmth of `measured` slots from `first` on, round the ring.
    const uint64_t* known;
    int32_t first, measured;

    GLM53_HD uint64_t measure(int32_t slot) const {
        const int32_t key = owner[slot];
        if (key < 0) return 0;
        const uint32_t age = now - last[key];
        return 1 + fine_heat(heat[key], age) / (static_cast<uint64_t>(age) + 1);
    }

    GLM53_HD uint64_t operator()(int32_t slot) const {
        const int32_t at = slot >= first ? slot - first : slot - first + slots;
        return at < measured ? known[at] : measure(slot);
    }
};

// The coldest of the next kWindow slots from *hand on that are not busy, the first among equals; the hand
// moves behind them. Fewer where fewer are free in one round; -1, and the hand stays, when none is.
GLM53_HD int32_t victim(const SlotWarmth& warmth, const uint32_t* busy, int32_t* hand, bool* empty) {
    int32_t coldest = -1, seen = 0, slot = *hand;
    uint64_t least = 0;
    for (int32_t probe = 0; probe < warmth.slots && seen < kWindow; ++probe) {
        const int32_t here = slot;
        slot = here + 1 == warmth.slots ? 0 : here + 1;
        if (bit_get(busy, here)) continue;
        const uint64_t value = warmth(here);
        if (seen++ == 0 || value < least) coldest = here, least = value;
        *hand = slot;
    }
    *empty = least == 0;
    return coldest;
}

// One decode step of one layer.
//   picks[n]       expert ids, duplicates allowed; ids outside [0, experts) are counted and skipped
//   resident[n]    the slot of each pick's expert before the step, -1 if none
//   priority[n]    misses with the higher value are admitted first, pick order among equals
//   admit_limit    how many misses may be admitted; gpu_share in (0, 1] lowers it to that share of
//   the distinct misses, plus `dither`, rounded down
struct StepQuestion {
    const int32_t* picks;
    const int32_t* resident;
    const uint32_t* priority;
    int32_t n, experts, admit_limit;
    float gpu_share, dither;
};

//   busy           slots that must stay, updated: on entry the locked slots, on return also every slot
//   that this step reads
//   admissions     at most n entries, in order; `evicted` is left to the caller, who has the owners at hand
GLM53_HD StepResult decide(const StepQuestion& step, const SlotWarmth& warmth, uint32_t* busy, int32_t* hand,
                           Admission* admissions) {
    StepResult result = {0, 0, 0, 0, 0};
    int16_t waiting[kMaxPicks];  // index of the first pick of each distinct miss
    int32_t misses = 0;
    for (int32_t i = 0; i < step.n; ++i) {
        if (step.picks[i] < 0 || step.picks[i] >= step.experts) {
            ++result.invalid;
        } else if (step.resident[i] >= 0) {
            if (!bit_get(busy, step.resident[i])) ++result.hits;
            bit_set(busy, step.resident[i]);
        } else {
            bool seen = false;
            for (int32_t j = 0; j < misses && !seen; ++j) seen = step.picks[waiting[j]] == step.picks[i];
            if (!seen) waiting[misses++] = static_cast<int16_t>(i);
        }
    }
    const int32_t share = static_cast<int32_t>(misses * step.gpu_share + step.dither);
    const int32_t limit = share < step.admit_limit ? share : step.admit_limit;
    int32_t left = misses;
    while (left > 0 && result.admitted < limit) {
        int32_t best = 0;
        for (int32_t j = 1; j < left; ++j)
            if (step.priority[waiting[j]] > step.priority[waiting[best]]) best = j;
        const int32_t i = waiting[best];
        bool empty;
        const int32_t slot = victim(warmth, busy, hand, &empty);
        if (slot < 0) break;
        --left;
        for (int32_t j = best; j < left; ++j) waiting[j] = waiting[j + 1];
        bit_set(busy, slot);
        result.evicted += !empty;
        admissions[result.admitted++] = {step.picks[i], slot, -1};
    }
    result.no_victim = left;
    return result;
}

}  // namespace glm53
