// What the GPU computes itself in a decode step of fast mode: its picks, gathered into runs of one expert, so
// that an expert's weights are read once for all rows. Plain C++, so that g++ can test it.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace glm53 {

constexpr int kRunRows = 8;    // rows of one run: a matrix instruction takes as many
constexpr int kMostRuns = 64;  // rows * experts per token, and then some

// Slices of a sum over the inputs. What has just arrived is awaited, and few: more of the card works on it.
constexpr int kSlices = 4, kMostSlices = 8;

// Where a pick's expert is: in its slot, on its way there, or not on the GPU in this step.
enum PickPlace : int32_t { kResident = 0, kArriving = 1, kElsewhere = 2 };

struct ExpertRun {
    int32_t expert;
    int32_t rows;
    int32_t pick[kRunRows];  // indices into the step's picks
};

// Runs of residents first, those of arriving experts behind them.
struct RunList {
    int32_t count[2];  // by place
    ExpertRun run[kMostRuns];
    float weight[kMostRuns];  // of each pick; 0 for what is computed elsewhere
};

// How many runs of that place begin with a pick before i; `first` says which picks begin one.
GLM53_HD int32_t runs_before(const int32_t* place, const bool* first, int32_t i, int32_t wanted) {
    int32_t count = 0;
    for (int32_t j = 0; j < i; ++j) count += first[j] && place[j] == wanted;
    return count;
}

// Is pick i the first of a run? Every most_rows-th pick of one expert is.
GLM53_HD bool begins_run(const int32_t* expert, const int32_t* place, int32_t i, int32_t most_rows) {
    if (place[i] == kElsewhere) return false;
    int32_t before = 0;
    for (int32_t j = 0; j < i; ++j) before += expert[j] == expert[i];
    return before % most_rows == 0;
}

// The run that begins with pick i of n.
GLM53_HD void fill_run(const int32_t* expert, int32_t n, int32_t i, int32_t most_rows, ExpertRun* run) {
    run->expert = expert[i];
    run->rows = 0;
    for (int32_t j = i; j < n && run->rows < most_rows; ++j)
        if (expert[j] == expert[i]) run->pick[run->rows++] = j;
}

}  // namespace glm53
