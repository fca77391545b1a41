/* AVX-512 (F, BW, DQ, VL, VBMI, VNNI) for the bands; everything else is the AVX2 code.
 * Only this file's own functions are compiled for it, by the pragma below. */
#include <immintrin.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/codebook.h"
#include "cpu/kernels.h"

// GCC 12 warns of its own _mm512_undefined_ps.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")

#include "cpu/decode_avx512.h"
#include "cpu/rotate_avx2.h"

namespace glm53 {
namespace {

constexpr std::uint32_t kGroups = 8;             // of a tile: columns g and g+8
constexpr std::uint32_t kTileSums = 16 * 16;     // floats: 16 lanes for each of 16 columns
constexpr std::uint32_t kTileCounts = kGroups * 16;  // int32: 16 lanes for each pair of columns

/* The feature, of a tile's 16, of each symbol of a group; both columns use the same ones. */
constexpr std::array<std::int16_t, 32> kFeature = [] {
  std::array<std::int16_t, 32> feature{};
  for (std::uint32_t t = 0; t < 32; ++t) feature[t] = static_cast<std::int16_t>(symbol_row(t));
  return feature;
}();

/* A tile that is needed soon: bands are short pieces of memory that no prefetcher foresees. */
template <std::uint32_t Bits>
GLM53_INLINE void prefetch(const std::uint8_t* tile) {
  for (std::size_t line = 0; line < tile_bytes(Bits); line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(tile + line), _MM_HINT_T0);
  }
}

/* A tile's 16 features as they meet the weights: four chunks of 0, 1, 8, 9 and so on by twos. */
constexpr std::array<std::int32_t, 16> kOrder = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};

void rotate_in(const float* x, const std::uint16_t* suh, float* out, std::size_t out_stride,
               std::uint32_t features) {
  const __m512i order = _mm512_loadu_si512(kOrder.data());
  for (std::uint32_t at = 0; at < features; at += kBlock, out += out_stride) {
    __m256 v[avx2::kVectors];
    avx2::rotate_block(x + at, suh + at, v);
    for (int i = 0; i < avx2::kVectors; i += 2) {
      const __m512 tile = _mm512_insertf32x8(_mm512_castps256_ps512(v[i]), v[i + 1], 1);
      _mm512_storeu_ps(out + 8 * i, _mm512_permutexvar_ps(order, tile));
    }
  }
}

/* Adds one group of one tile to the sums of every row; sums are [tile][row][group][2][16]. */
template <std::uint32_t Bits, int G>
GLM53_INLINE void add_group(const std::uint8_t* tile, const float* x, std::uint32_t rows, float* sums) {
  const avx512::Weights w = avx512::decode_weights<Bits, G>(tile);
  for (std::uint32_t r = 0; r < rows; ++r, x += kRotatedBlock, sums += kTileSums) {
    const __m512 inputs = _mm512_loadu_ps(x);
    float* at = sums + 32 * G;
    _mm512_store_ps(at, _mm512_fmadd_ps(w.low, inputs, _mm512_load_ps(at)));
    _mm512_store_ps(at + 16, _mm512_fmadd_ps(w.high, inputs, _mm512_load_ps(at + 16)));
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
      prefetch<Bits>(tile + 2 * job.row_bytes);
      (add_group<Bits, G>(tile, x, rows, sums + nt * rows * kTileSums), ...);
    }
  }
  for (std::uint32_t r = 0; r < rows; ++r) {
    float* y = job.y + r * job.y_stride;
    for (std::uint32_t n = 0; n < kBlock; ++n) {
      const float* lanes = sums + (n / kTile * rows + r) * kTileSums + n % 8 * 32 + n / 8 % 2 * 16;
      y[n] = _mm512_reduce_add_ps(_mm512_load_ps(lanes));
    }
  }
}

/* A block of one row for the fast arithmetic. */
struct Quantised {
  std::int16_t x[kBlock];
  float scale;  // x * scale is the rotated input
  float sum;    // of all 128 x
};
static_assert(sizeof(Quantised) <= kRotatedBlock * sizeof(float));

void rotate_in_fast(const float* x, const std::uint16_t* suh, float* out, std::size_t out_stride,
                    std::uint32_t features) {
  for (std::uint32_t at = 0; at < features; at += kBlock, out += out_stride) {
    __m256 v[avx2::kVectors];
    avx2::rotate_block(x + at, suh + at, v);
    auto& block = *reinterpret_cast<Quantised*>(out);
    const avx2::Scale scale = avx2::scale_of(v);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < avx2::kVectors; ++i) {
      const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(scale.inverse)));
      sum = _mm256_add_epi32(sum, whole);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(block.x + 8 * i), _mm256_cvtepi32_epi16(whole));
    }
    block.scale = scale.scale;
    block.sum = avx2::lane_sum(_mm256_cvtepi32_ps(sum));
  }
}

/* Inputs of one k tile in the order of the states. */
GLM53_INLINE __m512i spread(const std::int16_t* x) {
  const __m512i all = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  return _mm512_permutexvar_epi16(_mm512_loadu_si512(kFeature.data()), all);
}

/* Adds one group of one tile. A lane takes 16 products below 1020 * 32767 per block: no overflow. */
template <std::uint32_t Bits, int G>
GLM53_INLINE void count_group(const std::uint8_t* tile, const __m512i* x, std::uint32_t rows,
                              std::int32_t* counts) {
  const __m512i sums = avx512::byte_sums<Bits, G>(tile);
  for (std::uint32_t r = 0; r < rows; ++r) {
    auto* at = counts + r * kTileCounts + 16 * G;
    _mm512_store_si512(at, _mm512_dpwssd_epi32(_mm512_load_si512(at), sums, x[r]));
  }
}

/* sums += scale * counts, counts = 0, for one block of every row. */
GLM53_INLINE void flush(const float* x, std::uint32_t rows, std::int32_t* counts, float* sums) {
  for (std::uint32_t tile_row = 0; tile_row < kBlockTiles * rows; ++tile_row) {
    const auto* block = reinterpret_cast<const Quantised*>(x + tile_row % rows * kRotatedBlock);
    const __m512 scale = _mm512_set1_ps(block->scale);
    for (std::uint32_t i = tile_row * kTileCounts; i < (tile_row + 1) * kTileCounts; i += 16) {
      const __m512 whole = _mm512_cvtepi32_ps(_mm512_load_si512(counts + i));
      _mm512_store_ps(sums + i, _mm512_fmadd_ps(whole, scale, _mm512_load_ps(sums + i)));
      _mm512_store_si512(counts + i, _mm512_setzero_si512());
    }
  }
}

/* y = unit * (step * sum - offset * sum of x): the codebook's line, once per column. */
GLM53_INLINE void finish_fast(const float* sums, float x_sum, std::uint32_t rows, float* y) {
  constexpr __mmask16 low = 0x3333;  // lanes of column g; the others are column g+8
  const float offset = x_sum * (kCodebookOffset * kCodebookUnit);
  for (std::uint32_t n = 0; n < kBlock; ++n) {
    const __m512 lanes = _mm512_load_ps(sums + n / kTile * rows * kTileCounts + n % 8 * 16);
    const float sum = _mm512_mask_reduce_add_ps(n / 8 % 2 == 0 ? low : ~low, lanes);
    y[n] = sum * (kCodebookStep * kCodebookUnit) - offset;
  }
}

template <std::uint32_t Bits, int... G>
GLM53_INLINE void fast_rows(const Band& job, std::uint32_t rows, std::integer_sequence<int, G...>) {
  alignas(64) std::int32_t counts[kMaxBandRows * kBlockTiles * kTileCounts];
  alignas(64) float sums[kMaxBandRows * kBlockTiles * kTileCounts];
  __m512i x[kMaxBandRows];
  float x_sums[kMaxBandRows] = {};
  std::memset(counts, 0, rows * kBlockTiles * kTileCounts * sizeof(std::int32_t));
  std::memset(sums, 0, rows * kBlockTiles * kTileCounts * sizeof(float));
  const std::uint8_t* tile_row = job.trellis;
  for (std::uint32_t block = 0; block < job.k_blocks; ++block) {
    const float* from = job.x + block * job.x_stride;
    for (std::uint32_t kt = 0; kt < kBlockTiles; ++kt, tile_row += job.row_bytes) {
      for (std::uint32_t r = 0; r < rows; ++r) {
        x[r] = spread(reinterpret_cast<const Quantised*>(from + r * kRotatedBlock)->x + kt * kTile);
      }
      for (std::uint32_t nt = 0; nt < kBlockTiles; ++nt) {
        const std::uint8_t* tile = tile_row + nt * tile_bytes(Bits);
        prefetch<Bits>(tile + 2 * job.row_bytes);
        (count_group<Bits, G>(tile, x, rows, counts + nt * rows * kTileCounts), ...);
      }
    }
    flush(from, rows, counts, sums);
    for (std::uint32_t r = 0; r < rows; ++r) {
      const auto* one = reinterpret_cast<const Quantised*>(from + r * kRotatedBlock);
      x_sums[r] += one->scale * one->sum;
    }
  }
  for (std::uint32_t r = 0; r < rows; ++r) {
    finish_fast(sums + r * kTileCounts, x_sums[r], rows, job.y + r * job.y_stride);
  }
}

/* One row: the counts of a tile column stay in registers for a whole block. */
template <std::uint32_t Bits, int... G>
GLM53_INLINE void fast_row(const Band& job, std::integer_sequence<int, G...>) {
  alignas(64) float sums[kBlockTiles * kTileCounts] = {};
  float x_sum = 0.0f;
  const std::uint8_t* tile_row = job.trellis;
  for (std::uint32_t block = 0; block < job.k_blocks; ++block, tile_row += kBlockTiles * job.row_bytes) {
    const auto& from = *reinterpret_cast<const Quantised*>(job.x + block * job.x_stride);
    __m512i x[kBlockTiles];
    for (std::uint32_t kt = 0; kt < kBlockTiles; ++kt) x[kt] = spread(from.x + kt * kTile);
    const __m512 scale = _mm512_set1_ps(from.scale);
    for (std::uint32_t nt = 0; nt < kBlockTiles; ++nt) {
      __m512i counts[kGroups] = {};
      const std::uint8_t* tile = tile_row + nt * tile_bytes(Bits);
      for (std::uint32_t kt = 0; kt < kBlockTiles; ++kt, tile += job.row_bytes) {
        prefetch<Bits>(tile + kBlockTiles * job.row_bytes);
        ((counts[G] = _mm512_dpwssd_epi32(counts[G], avx512::byte_sums<Bits, G>(tile), x[kt])), ...);
      }
      for (std::uint32_t g = 0; g < kGroups; ++g) {
        float* at = sums + nt * kTileCounts + 16 * g;
        _mm512_store_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(counts[g]), scale, _mm512_load_ps(at)));
      }
    }
    x_sum += from.scale * from.sum;
  }
  finish_fast(sums, x_sum, 1, job.y);
}

constexpr auto kAllGroups = std::make_integer_sequence<int, kGroups>{};

template <std::uint32_t Bits>
void exact_band(const Band& job) {
  if (job.rows == 1) {
    exact_rows<Bits>(job, 1, kAllGroups);
  } else {
    exact_rows<Bits>(job, job.rows, kAllGroups);
  }
}

template <std::uint32_t Bits>
void fast_band(const Band& job) {
  if (job.rows == 1) {
    fast_row<Bits>(job, kAllGroups);
  } else {
    fast_rows<Bits>(job, job.rows, kAllGroups);
  }
}

}  // namespace

const Arithmetic kAvx512Exact = {
    rotate_in,
    {nullptr, exact_band<1>, exact_band<2>, exact_band<3>, exact_band<4>, exact_band<5>, exact_band<6>,
     exact_band<7>, exact_band<8>}};

const Arithmetic kAvx512Fast = {
    rotate_in_fast,
    {nullptr, fast_band<1>, fast_band<2>, fast_band<3>, fast_band<4>, fast_band<5>, fast_band<6>,
     fast_band<7>, fast_band<8>}};

}  // namespace glm53

#pragma GCC pop_options
