#include "cpu/linear.h"

#include <algorithm>
#include <memory>

#include "cpu/half.h"

namespace glm53 {

void linear_dequant(Pool& pool, const Kernels& kernels, const Linear& linear, float* out) {
  const std::uint32_t in = linear.trellis.in_features;
  const std::uint32_t in_blocks = in / kBlock, out_blocks = linear.trellis.out_features / kBlock;
  auto one_block = [&](std::uint32_t item) {
    const std::uint32_t in_block = item % in_blocks, out_block = item / in_blocks;
    alignas(64) float block[kBlock * kBlock];
    float scale[kBlock];
    for (std::uint32_t k = 0; k < kBlock; ++k) {
      scale[k] = half_to_float(linear.suh[in_block * kBlock + k]);
    }
    kernels.dequant_block(linear.trellis, in_block, out_block, block);
    for (std::uint32_t n = 0; n < kBlock; ++n) {
      const std::uint32_t row = out_block * kBlock + n;
      const float row_scale = half_to_float(linear.svh[row]);
      float* to = out + std::size_t{row} * in + in_block * kBlock;
      for (std::uint32_t k = 0; k < kBlock; ++k) to[k] = block[n * kBlock + k] * scale[k] * row_scale;
    }
  };
  pool.run(in_blocks * out_blocks, one_block);
}

void linear_band(const Kernels& kernels, const Linear& linear, std::uint32_t block, const float* x,
                 std::uint32_t rows, float* y, std::size_t y_stride) {
  const Trellis& trellis = linear.trellis;
  for (std::uint32_t first = 0; first < rows; first += kMaxBandRows) {
    const Band band{
        .trellis = trellis.tile(0, block * kBlockTiles),
        .row_bytes = trellis.row_bytes(),
        .k_tiles = trellis.in_features / kTile,
        .rows = std::min(kMaxBandRows, rows - first),
        .x = x + std::size_t{first} * trellis.in_features,
        .x_stride = trellis.in_features,
        .y = y + first * y_stride,
        .y_stride = y_stride,
    };
    kernels.band[trellis.bits](band);
    for (std::uint32_t r = 0; r < band.rows; ++r) {
      kernels.rotate_out(band.y + r * y_stride, linear.svh + block * kBlock);
    }
  }
}

void linear_forward(Pool& pool, const Kernels& kernels, Scratch& scratch, const Linear& linear,
                    const float* x, std::uint32_t rows, float* out) {
  const std::size_t in = linear.trellis.in_features, columns = linear.trellis.out_features;
  float* rotated = scratch.take(rows * in);
  auto rotate = [&](std::uint32_t row) {
    kernels.rotate_in(x + row * in, linear.suh, rotated + row * in, linear.trellis.in_features);
  };
  pool.run(rows, rotate);
  auto one_band = [&](std::uint32_t block) {
    linear_band(kernels, linear, block, rotated, rows, out + std::size_t{block} * kBlock, columns);
  };
  pool.run(linear.trellis.out_features / kBlock, one_band);
}

}  // namespace glm53
