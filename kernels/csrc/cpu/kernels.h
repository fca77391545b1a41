/* The inner loops, once per instruction set. Same contract, same results up to float32 rounding. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "cpu/trellis.h"

namespace glm53 {

/* One band: 128 columns of a trellis against `rows` rotated inputs.
 * y[r][0..127] = sum over k of x[r][k] * W[k][column]; x is in the order that rotate_in wrote. */
struct Band {
  const std::uint8_t* trellis;  // the band's first tile in the first k tile
  std::size_t row_bytes;        // from one k tile to the next
  std::uint32_t k_tiles;
  std::uint32_t rows;           // 1..kMaxBandRows
  const float* x;
  std::size_t x_stride;         // floats between rows
  float* y;
  std::size_t y_stride;
};

inline constexpr std::uint32_t kMaxBandRows = 32;

struct Kernels {
  glm53_isa isa;
  /* out = order(hadamard(x * suh)), features a multiple of 128. */
  void (*rotate_in)(const float* x, const std::uint16_t* suh, float* out, std::uint32_t features);
  /* y = hadamard(y) * svh for one block of 128. */
  void (*rotate_out)(float* y, const std::uint16_t* svh);
  /* Indexed by bits; [0] is null. */
  void (*band[9])(const Band& band);
  /* gate[i] = min(silu(gate[i]), limit) * clamp(up[i], -limit, limit); limit 0: no clamp. */
  void (*activate)(float* gate, const float* up, float limit, std::uint32_t count);
  /* block[n][k] = H * decoded[k][n] * H for one 128x128 block, without suh and svh. */
  void (*dequant_block)(const Trellis& trellis, std::uint32_t in_block, std::uint32_t out_block,
                        float* block);
};

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;

/* GLM53_ISA_AUTO: the best this CPU runs. Refuses what it cannot run. */
const Kernels& select_kernels(std::uint32_t isa);
glm53_isa best_isa();

}  // namespace glm53
