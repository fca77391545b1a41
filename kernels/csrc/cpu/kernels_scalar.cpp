/* The scalar twin: what the other instruction sets are measured against, and the path of last resort. */
#include <cmath>

#include "cpu/codebook.h"
#include "cpu/half.h"
#include "cpu/kernels.h"

namespace glm53 {
namespace {

constexpr float kHadamardScale = 0.08838834764831845f;  // 1 / sqrt(128)

void hadamard128(float* v) {
  for (std::uint32_t half = 1; half < kBlock; half *= 2) {
    for (std::uint32_t i = 0; i < kBlock; ++i) {
      if (i & half) continue;
      const float a = v[i], b = v[i + half];
      v[i] = a + b;
      v[i + half] = a - b;
    }
  }
  for (std::uint32_t i = 0; i < kBlock; ++i) v[i] *= kHadamardScale;
}

void rotate_in(const float* x, const std::uint16_t* suh, float* out, std::size_t out_stride,
               std::uint32_t features) {
  for (std::uint32_t at = 0; at < features; at += kBlock, out += out_stride) {
    for (std::uint32_t i = 0; i < kBlock; ++i) out[i] = x[at + i] * half_to_float(suh[at + i]);
    hadamard128(out);
  }
}

void rotate_out(float* y, const std::uint16_t* svh) {
  hadamard128(y);
  for (std::uint32_t i = 0; i < kBlock; ++i) y[i] *= half_to_float(svh[i]);
}

void decode_tile(const std::uint8_t* tile, std::uint32_t bits, float (&weights)[kTile][kTile]) {
  for (std::uint32_t t = 0; t < kTileWeights; ++t) {
    weights[symbol_row(t)][symbol_column(t)] = codebook_value(symbol_state(tile, bits, t));
  }
}

template <std::uint32_t Bits>
void band(const Band& job) {
  for (std::uint32_t r = 0; r < job.rows; ++r) {
    for (std::uint32_t n = 0; n < kBlock; ++n) job.y[r * job.y_stride + n] = 0.0f;
  }
  float weights[kTile][kTile];
  for (std::uint32_t kt = 0; kt < job.k_blocks * kBlockTiles; ++kt) {
    for (std::uint32_t nt = 0; nt < kBlockTiles; ++nt) {
      decode_tile(job.trellis + kt * job.row_bytes + nt * tile_bytes(Bits), Bits, weights);
      for (std::uint32_t r = 0; r < job.rows; ++r) {
        const float* x = job.x + kt / kBlockTiles * job.x_stride + r * kRotatedBlock + kt % kBlockTiles * kTile;
        float* y = job.y + r * job.y_stride + nt * kTile;
        for (std::uint32_t k = 0; k < kTile; ++k) {
          for (std::uint32_t n = 0; n < kTile; ++n) y[n] += x[k] * weights[k][n];
        }
      }
    }
  }
}

void activate(float* gate, const float* up, float limit, std::uint32_t count) {
  const float most = limit == 0.0f ? INFINITY : limit;
  for (std::uint32_t i = 0; i < count; ++i) {
    const float silu = gate[i] / (1.0f + std::exp(-gate[i]));
    gate[i] = std::fmin(silu, most) * std::fmax(-most, std::fmin(up[i], most));
  }
}

/* The transform over one index of block[128][128], a row of 128 floats at a time. */
void hadamard_rows(float* block) {
  for (std::uint32_t half = 1; half < kBlock; half *= 2) {
    for (std::uint32_t n = 0; n < kBlock; ++n) {
      if (n & half) continue;
      float* a = block + n * kBlock;
      float* b = a + half * kBlock;
      for (std::uint32_t k = 0; k < kBlock; ++k) {
        const float sum = a[k] + b[k], difference = a[k] - b[k];
        a[k] = sum;
        b[k] = difference;
      }
    }
  }
  for (std::uint32_t i = 0; i < kBlock * kBlock; ++i) block[i] *= kHadamardScale;
}

void dequant_block(const Trellis& trellis, std::uint32_t in_block, std::uint32_t out_block,
                   float* block) {
  float weights[kTile][kTile];
  for (std::uint32_t kt = 0; kt < kBlockTiles; ++kt) {
    for (std::uint32_t nt = 0; nt < kBlockTiles; ++nt) {
      decode_tile(trellis.tile(in_block * kBlockTiles + kt, out_block * kBlockTiles + nt),
                  trellis.bits, weights);
      for (std::uint32_t n = 0; n < kTile; ++n) {
        float* row = block + (nt * kTile + n) * kBlock + kt * kTile;
        for (std::uint32_t k = 0; k < kTile; ++k) row[k] = weights[k][n];
      }
    }
  }
  hadamard_rows(block);
  for (std::uint32_t n = 0; n < kBlock; ++n) hadamard128(block + n * kBlock);
}

}  // namespace

const Arithmetic kScalarExact = {
    rotate_in,
    {nullptr, band<1>, band<2>, band<3>, band<4>, band<5>, band<6>, band<7>, band<8>},
};

const Dense kScalarDense = {rotate_out, activate, dequant_block};

}  // namespace glm53
