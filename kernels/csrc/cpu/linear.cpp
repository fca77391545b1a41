#include "cpu/linear.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "cpu/half.h"

namespace glm53 {

float* Scratch::take(std::size_t floats) {
  if (floats > floats_) {
    floats_ = 0;
    memory_.reset(static_cast<float*>(std::aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64)));
    if (!memory_) throw std::bad_alloc();
    floats_ = floats;
  }
  return memory_.get();
}

void linear_dequant(Pool& pool, const Dense& dense, const Linear& linear, float* out) {
  const std::uint32_t in = linear.trellis.in_features;
  const std::uint32_t in_blocks = in / kBlock, out_blocks = linear.trellis.out_features / kBlock;
  auto one_block = [&](std::uint32_t item) {
    const std::uint32_t in_block = item % in_blocks, out_block = item / in_blocks;
    alignas(64) float block[kBlock * kBlock];
    float scale[kBlock];
    for (std::uint32_t k = 0; k < kBlock; ++k) {
      scale[k] = half_to_float(linear.suh[in_block * kBlock + k]);
    }
    dense.dequant_block(linear.trellis, in_block, out_block, block);
    for (std::uint32_t n = 0; n < kBlock; ++n) {
      const std::uint32_t row = out_block * kBlock + n;
      const float row_scale = half_to_float(linear.svh[row]);
      float* to = out + std::size_t{row} * in + in_block * kBlock;
      for (std::uint32_t k = 0; k < kBlock; ++k) to[k] = block[n * kBlock + k] * scale[k] * row_scale;
    }
  };
  pool.run(in_blocks * out_blocks, one_block);
}

void band_slice(const Engine& engine, const Linear& linear, std::uint32_t block, Slice slice,
                const Rotated& x, float* y, std::size_t y_stride) {
  const Trellis& trellis = linear.trellis;
  const auto rows = static_cast<std::uint32_t>(x.rows);
  for (std::uint32_t first = 0; first < rows; first += kMaxBandRows) {
    const Band band{
        .trellis = trellis.tile(slice.first_block * kBlockTiles, block * kBlockTiles),
        .row_bytes = trellis.row_bytes(),
        .k_blocks = slice.blocks,
        .rows = std::min(kMaxBandRows, rows - first),
        .x = x.at(slice.first_block, first),
        .x_stride = x.stride(),
        .y = y + first * y_stride,
        .y_stride = y_stride,
    };
    engine.arithmetic.band[trellis.bits](band);
  }
}

void finish_band(const Engine& engine, const Linear& linear, std::uint32_t block, std::size_t rows,
                 float* y, std::size_t y_stride, std::size_t slice_stride) {
  const std::uint32_t slices = Slice::count(linear.trellis.in_features);
  for (std::size_t r = 0; r < rows; ++r, y += y_stride) {
    for (std::uint32_t s = 1; s < slices; ++s) {
      for (std::uint32_t c = 0; c < kBlock; ++c) y[c] += y[s * slice_stride + c];
    }
    engine.dense.rotate_out(y, linear.svh + block * kBlock);
  }
}

void linear_forward(const Engine& engine, Scratch& scratch, const Linear& linear, const float* x,
                    std::uint32_t rows, float* out) {
  const std::uint32_t in = linear.trellis.in_features;
  const std::size_t columns = linear.trellis.out_features;
  const std::size_t parts_floats = Slice::count(in) * rows * columns;
  const Rotated rotated{scratch.take(Rotated::floats(rows, in) + parts_floats), rows};
  auto rotate = [&](std::uint32_t row) {
    engine.arithmetic.rotate_in(x + std::size_t{row} * in, linear.suh, rotated.at(0, row),
                                rotated.stride(), in);
  };
  engine.pool.run(rows, rotate);
  const std::uint32_t slices = Slice::count(in);
  float* parts = rotated.data + Rotated::floats(rows, in);
  auto one_band = [&](std::uint32_t block) {
    float* y = parts + std::size_t{block} * slices * rows * kBlock;
    for (std::uint32_t s = 0; s < slices; ++s) {
      band_slice(engine, linear, block, Slice::of(in, s), rotated, y + s * rows * kBlock, kBlock);
    }
    finish_band(engine, linear, block, rows, y, kBlock, rows * kBlock);
    for (std::uint32_t r = 0; r < rows; ++r) {
      std::memcpy(out + r * columns + block * kBlock, y + r * kBlock, kBlock * sizeof(float));
    }
  };
  engine.pool.run(linear.trellis.out_features / kBlock, one_band);
}

}  // namespace glm53
