/* Whole linears and routed experts over the pool. Arguments are already checked. */
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "cpu/kernels.h"
#include "cpu/pool.h"

namespace glm53 {

struct Linear {
  Trellis trellis;
  const std::uint16_t* suh;
  const std::uint16_t* svh;
};

/* What one forward runs on. */
struct Engine {
  Pool& pool;
  const Arithmetic& arithmetic;
  const Dense& dense;
};

/* float32 memory, aligned to cache lines, that grows and is reused; contents are not kept. */
class Scratch {
 public:
  float* take(std::size_t floats);

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float[], Free> memory_;
  std::size_t floats_ = 0;
};

/* Inputs of `rows` rows after rotation; block b of row r is at(b, r). */
struct Rotated {
  float* data;
  std::size_t rows;

  static std::size_t floats(std::size_t rows, std::size_t features) {
    return rows * (features / kBlock) * kRotatedBlock;
  }
  float* at(std::size_t block, std::size_t row) const {
    return data + (block * rows + row) * kRotatedBlock;
  }
  std::size_t stride() const { return rows * kRotatedBlock; }
};

void linear_dequant(Pool& pool, const Dense& dense, const Linear& linear, float* out);

void linear_forward(const Engine& engine, Scratch& scratch, const Linear& linear, const float* x,
                    std::uint32_t rows, float* out);

/* A part of a linear's inputs. Long inputs are cut in two, so that few experts keep many threads busy;
 * the cut depends on the size alone, so the sum of the parts does not depend on the threads. */
struct Slice {
  std::uint32_t first_block;
  std::uint32_t blocks;

  static constexpr std::uint32_t count(std::uint32_t features) { return features >= 2048 ? 2 : 1; }
  static constexpr Slice of(std::uint32_t features, std::uint32_t index) {
    const std::uint32_t blocks = features / kBlock, slices = count(features);
    const std::uint32_t first = index * blocks / slices;
    return {first, (index + 1) * blocks / slices - first};
  }
};

/* y[r] = columns 128*block .. +127 of row r through one slice of the trellis. */
void band_slice(const Engine& engine, const Linear& linear, std::uint32_t block, Slice slice,
                const Rotated& x, float* y, std::size_t y_stride);

/* y[r] = rotation of the sum of its slices; slice s is at y + s * slice_stride. */
void finish_band(const Engine& engine, const Linear& linear, std::uint32_t block, std::size_t rows,
                 float* y, std::size_t y_stride, std::size_t slice_stride);

}  // namespace glm53
