/* The inner loops, once per instruction set. Same contract, same results up to float32 rounding. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "cpu/trellis.h"

/* Inner loops are written as small functions; a call that is not inlined spills every vector. */
#define GLM53_INLINE [[gnu::always_inline]] inline

namespace glm53 {

/* Rotated inputs are kept block by block, [128-feature block][row], so that the rows of one block are
 * neighbours. What a block holds (floats, or integers with a scale) is the arithmetic's own business. */
inline constexpr std::uint32_t kRotatedBlock = 144;  // floats: room for 128 and for a scale

/* One band: 128 columns of a trellis against `rows` rotated inputs.
 * y[r][0..127] = sum over k of x[r][k] * W[k][column]. */
struct Band {
  const std::uint8_t* trellis;  // the band's first tile in the first k tile
  std::size_t row_bytes;        // from one k tile to the next
  std::uint32_t k_blocks;
  std::uint32_t rows;           // 1..kMaxBandRows
  const float* x;               // row 0 of the first block
  std::size_t x_stride;         // floats between blocks; rows are kRotatedBlock apart
  float* y;
  std::size_t y_stride;
};

inline constexpr std::uint32_t kMaxBandRows = 32;

/* How activations meet decoded weights. */
struct Arithmetic {
  /* out[b * out_stride ...] = hadamard(x * suh), for each 128-feature block b of one row. */
  void (*rotate_in)(const float* x, const std::uint16_t* suh, float* out, std::size_t out_stride,
                    std::uint32_t features);
  /* Indexed by bits; [0] is null. */
  void (*band[9])(const Band& band);
};

/* What is done to whole blocks of 128. */
struct Dense {
  /* y = hadamard(y) * svh for one block of 128. */
  void (*rotate_out)(float* y, const std::uint16_t* svh);
  /* gate[i] = min(silu(gate[i]), limit) * clamp(up[i], -limit, limit); limit 0: no clamp. */
  void (*activate)(float* gate, const float* up, float limit, std::uint32_t count);
  /* block[n][k] = H * decoded[k][n] * H for one 128x128 block, without suh and svh. */
  void (*dequant_block)(const Trellis& trellis, std::uint32_t in_block, std::uint32_t out_block,
                        float* block);
};

extern const Arithmetic kScalarExact, kAvx2Exact, kAvx2Fast, kAvx512Exact, kAvx512Fast;
extern const Dense kScalarDense, kAvx2Dense;

/* One instruction set.
 * exact: the codebook's own fp16 values, float32 activations.
 * fast: the codebook before its rounding and int16 activations with a scale per block, where the set
 * gains by it: about 2.1e-4 relative RMS of each linear. */
struct Kernels {
  glm53_isa isa;
  const Arithmetic& exact;
  const Arithmetic& fast;
  const Dense& dense;
};

/* GLM53_ISA_AUTO: the best this CPU runs. Refuses what it cannot run. */
const Kernels& select_kernels(std::uint32_t isa);
glm53_isa best_isa();

}  // namespace glm53
