/* Whole linears and routed experts over the pool. Arguments are already checked. */
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/pool.h"

namespace glm53 {

struct Linear {
  Trellis trellis;
  const std::uint16_t* suh;
  const std::uint16_t* svh;
};

/* float32 memory that grows and is reused from call to call; contents are not kept. */
class Scratch {
 public:
  float* take(std::size_t floats) {
    if (memory_.size() < floats) memory_.resize(floats);
    return memory_.data();
  }

 private:
  std::vector<float> memory_;
};

void linear_dequant(Pool& pool, const Kernels& kernels, const Linear& linear, float* out);

void linear_forward(Pool& pool, const Kernels& kernels, Scratch& scratch, const Linear& linear,
                    const float* x, std::uint32_t rows, float* out);

/* Columns 128*block .. +127 of y = x through the trellis and its output rotation. x is rotated. */
void linear_band(const Kernels& kernels, const Linear& linear, std::uint32_t block, const float* x,
                 std::uint32_t rows, float* y, std::size_t y_stride);

}  // namespace glm53
