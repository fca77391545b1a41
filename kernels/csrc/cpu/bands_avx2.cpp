/* AVX2 + FMA + F16C: rotated inputs against a band of a trellis, exactly and fast.
 * Only this file's own functions are compiled for them, by the pragma below. */
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/codebook.h"
#include "cpu/kernels.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

#include "cpu/decode_avx2.h"
#include "cpu/rotate_avx2.h"

namespace glm53 {
namespace {

using avx2::kVectors;

constexpr std::uint32_t kTileSums = 16 * 8;  // floats: 8 lanes for each of 16 columns

void rotate_in(const float* x, const std::uint16_t* suh, float* out, std::size_t out_stride,
               std::uint32_t features) {
  for (std::uint32_t at = 0; at < features; at += kBlock, out += out_stride) {
    __m256 v[kVectors];
    avx2::rotate_block(x + at, suh + at, v);
    for (int i = 0; i < kVectors; i += 2) {
      avx2::to_order(v[i], v[i + 1]);
      _mm256_storeu_ps(out + 8 * i, v[i]);
      _mm256_storeu_ps(out + 8 * i + 8, v[i + 1]);
    }
  }
}

/* Adds one group of one tile to the sums of every row; sums are [tile][row][column pair][2][8]. */
template <std::uint32_t Bits, int G>
GLM53_INLINE void add_group(const std::uint8_t* tile, const float* x, std::uint32_t rows, float* sums) {
  const avx2::Weights w = avx2::decode_weights<Bits, G>(tile);
  for (std::uint32_t r = 0; r < rows; ++r, x += kRotatedBlock, sums += kTileSums) {
    const __m256 x0 = _mm256_loadu_ps(x), x1 = _mm256_loadu_ps(x + 8);
    float* low = sums + 16 * G;
    float* high = low + 8;
    const __m256 a = _mm256_fmadd_ps(w.low[0], x0, _mm256_load_ps(low));
    const __m256 b = _mm256_fmadd_ps(w.high[0], x0, _mm256_load_ps(high));
    _mm256_store_ps(low, _mm256_fmadd_ps(w.low[1], x1, a));
    _mm256_store_ps(high, _mm256_fmadd_ps(w.high[1], x1, b));
  }
}

/* The tile two k tiles further on: bands are short pieces of memory that no prefetcher foresees. */
template <std::uint32_t Bits>
GLM53_INLINE void prefetch(const std::uint8_t* tile, std::size_t row_bytes) {
  for (std::size_t line = 0; line < tile_bytes(Bits); line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(tile + 2 * row_bytes + line), _MM_HINT_T0);
  }
}

template <std::uint32_t Bits, int... G>
GLM53_INLINE void exact_rows(const Band& job, std::uint32_t rows, std::integer_sequence<int, G...>) {
  alignas(64) float sums[kMaxBandRows * kBlockTiles * kTileSums];
  std::memset(sums, 0, rows * kBlockTiles * kTileSums * sizeof(float));
  const std::uint8_t* tile_row = job.trellis;
  for (std::uint32_t kt = 0; kt < job.k_blocks * kBlockTiles; ++kt, tile_row += job.row_bytes) {
    const float* x = job.x + kt / kBlockTiles * job.x_stride + kt % kBlockTiles * kTile;
    for (std::uint32_t nt = 0; nt < kBlockTiles; ++nt) {
      const std::uint8_t* tile = tile_row + nt * tile_bytes(Bits);
      prefetch<Bits>(tile, job.row_bytes);
      (add_group<Bits, G>(tile, x, rows, sums + nt * rows * kTileSums), ...);
    }
  }
  for (std::uint32_t r = 0; r < rows; ++r) {
    float* y = job.y + r * job.y_stride;
    for (std::uint32_t n = 0; n < kBlock; ++n) {
      const std::uint32_t nt = n / kTile, pair = n % 8, high = n / 8 % 2;
      y[n] = avx2::lane_sum(_mm256_load_ps(sums + (nt * rows + r) * kTileSums + 16 * pair + 8 * high));
    }
  }
}

template <std::uint32_t Bits>
void exact_band(const Band& job) {
  constexpr auto groups = std::make_integer_sequence<int, 8>{};
  if (job.rows == 1) {
    exact_rows<Bits>(job, 1, groups);
  } else {
    exact_rows<Bits>(job, job.rows, groups);
  }
}

/* A block of one row for the fast arithmetic. */
struct Quantised {
  std::int16_t x[2 * kBlock];  // each k tile: two vectors in the order of the states
  float scale;                 // x * scale is the rotated input
  float sum;                   // of all 128 x
};
static_assert(sizeof(Quantised) <= kRotatedBlock * sizeof(float));

void quantise(__m256 (&v)[kVectors], Quantised& out) {
  const avx2::Scale scale = avx2::scale_of(v);
  __m256i sum = _mm256_setzero_si256();
  for (int i = 0; i < kVectors; i += 2) {
    avx2::to_order(v[i], v[i + 1]);
    for (int p = 0; p < 2; ++p) {
      const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(v[i + p], _mm256_set1_ps(scale.inverse)));
      sum = _mm256_add_epi32(sum, whole);
      // Both columns of a group use the same rows: every lane of 8 is 4 values, twice.
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.x + 16 * (i + p)), _mm256_packs_epi32(whole, whole));
    }
  }
  out.scale = scale.scale;
  out.sum = avx2::lane_sum(_mm256_cvtepi32_ps(sum));
}

void rotate_in_fast(const float* x, const std::uint16_t* suh, float* out, std::size_t out_stride,
                    std::uint32_t features) {
  for (std::uint32_t at = 0; at < features; at += kBlock, out += out_stride) {
    __m256 v[kVectors];
    avx2::rotate_block(x + at, suh + at, v);
    quantise(v, *reinterpret_cast<Quantised*>(out));
  }
}

constexpr std::uint32_t kTileCounts = 8 * 8;  // int32 lanes of one tile: column pairs of 8

/* Adds one group of one tile. A lane takes 32 products below 1020 * 32767 per block: no overflow. */
template <std::uint32_t Bits, int G>
GLM53_INLINE void count_group(const std::uint8_t* tile, const float* x, std::uint32_t kt,
                              std::uint32_t rows, std::int32_t* counts) {
  __m256i v[2];
  avx2::load_states<Bits, G>(tile, v);
  avx2::byte_sums(v);
  for (std::uint32_t r = 0; r < rows; ++r, x += kRotatedBlock, counts += kTileCounts) {
    const auto* at = reinterpret_cast<const __m256i*>(reinterpret_cast<const Quantised*>(x)->x + 32 * kt);
    auto* count = reinterpret_cast<__m256i*>(counts + 8 * G);
    const __m256i a = _mm256_add_epi32(_mm256_load_si256(count), _mm256_madd_epi16(v[0], _mm256_loadu_si256(at)));
    _mm256_store_si256(count, _mm256_add_epi32(a, _mm256_madd_epi16(v[1], _mm256_loadu_si256(at + 1))));
  }
}

/* sums += scale * counts, counts = 0, for one block of every row. */
GLM53_INLINE void flush(const float* x, std::uint32_t rows, std::int32_t* counts, float* sums) {
  for (std::uint32_t tile_row = 0; tile_row < kBlockTiles * rows; ++tile_row) {
    const float factor = reinterpret_cast<const Quantised*>(x + tile_row % rows * kRotatedBlock)->scale;
    const __m256 scale = _mm256_set1_ps(factor);
    for (std::uint32_t i = tile_row * kTileCounts; i < (tile_row + 1) * kTileCounts; i += 8) {
      auto* count = reinterpret_cast<__m256i*>(counts + i);
      const __m256 whole = _mm256_cvtepi32_ps(_mm256_load_si256(count));
      _mm256_store_ps(sums + i, _mm256_fmadd_ps(whole, scale, _mm256_load_ps(sums + i)));
      _mm256_store_si256(count, _mm256_setzero_si256());
    }
  }
}

/* y = unit * (step * sum - offset * sum of x): the codebook's line, once per column. */
GLM53_INLINE void finish_fast(const float* sums, float x_sum, std::uint32_t rows, float* y) {
  const float offset = x_sum * (kCodebookOffset * kCodebookUnit);
  for (std::uint32_t n = 0; n < kBlock; ++n) {
    const float* lanes = sums + n / kTile * rows * kTileCounts + n % 8 * 8 + n / 8 % 2 * 2;
    const float sum = (lanes[0] + lanes[1]) + (lanes[4] + lanes[5]);
    y[n] = sum * (kCodebookStep * kCodebookUnit) - offset;
  }
}

template <std::uint32_t Bits, int... G>
GLM53_INLINE void fast_rows(const Band& job, std::uint32_t rows, std::integer_sequence<int, G...>) {
  alignas(64) std::int32_t counts[kMaxBandRows * kBlockTiles * kTileCounts];
  alignas(64) float sums[kMaxBandRows * kBlockTiles * kTileCounts];
  float x_sums[kMaxBandRows] = {};
  std::memset(counts, 0, rows * kBlockTiles * kTileCounts * sizeof(std::int32_t));
  std::memset(sums, 0, rows * kBlockTiles * kTileCounts * sizeof(float));
  const std::uint8_t* tile_row = job.trellis;
  for (std::uint32_t block = 0; block < job.k_blocks; ++block) {
    const float* x = job.x + block * job.x_stride;
    for (std::uint32_t kt = 0; kt < kBlockTiles; ++kt, tile_row += job.row_bytes) {
      for (std::uint32_t nt = 0; nt < kBlockTiles; ++nt) {
        const std::uint8_t* tile = tile_row + nt * tile_bytes(Bits);
        prefetch<Bits>(tile, job.row_bytes);
        (count_group<Bits, G>(tile, x, kt, rows, counts + nt * rows * kTileCounts), ...);
      }
    }
    flush(x, rows, counts, sums);
    for (std::uint32_t r = 0; r < rows; ++r) {
      const auto* one = reinterpret_cast<const Quantised*>(x + r * kRotatedBlock);
      x_sums[r] += one->scale * one->sum;
    }
  }
  for (std::uint32_t r = 0; r < rows; ++r) {
    finish_fast(sums + r * kTileCounts, x_sums[r], rows, job.y + r * job.y_stride);
  }
}

template <std::uint32_t Bits>
void fast_band(const Band& job) {
  constexpr auto groups = std::make_integer_sequence<int, 8>{};
  if (job.rows == 1) {
    fast_rows<Bits>(job, 1, groups);
  } else {
    fast_rows<Bits>(job, job.rows, groups);
  }
}

}  // namespace

const Arithmetic kAvx2Exact = {
    rotate_in,
    {nullptr, exact_band<1>, exact_band<2>, exact_band<3>, exact_band<4>, exact_band<5>, exact_band<6>,
     exact_band<7>, exact_band<8>}};

const Arithmetic kAvx2Fast = {
    rotate_in_fast,
    {nullptr, fast_band<1>, fast_band<2>, fast_band<3>, fast_band<4>, fast_band<5>, fast_band<6>,
     fast_band<7>, fast_band<8>}};

}  // namespace glm53

#pragma GCC pop_options
