/* AVX2 + FMA + F16C. Only this file's own functions are compiled for them, by the pragma below. */
#include <immintrin.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/codebook.h"
#include "cpu/half.h"
#include "cpu/kernels.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

#include "cpu/decode_avx2.h"

namespace glm53 {
namespace {

using avx2::Weights;

constexpr float kHadamardScale = 0.08838834764831845f;  // 1 / sqrt(128)
constexpr int kVectors = 16;                            // of 8 floats: one Hadamard block
constexpr std::uint32_t kTileSums = 16 * 8;             // floats: 8 lanes for each of 16 columns

GLM53_INLINE __m256 butterfly(__m256 v, __m256 swapped, __m256 signs) { return _mm256_fmadd_ps(v, signs, swapped); }

/* Sylvester order, not yet divided by sqrt(128). */
GLM53_INLINE void hadamard128(__m256 (&v)[kVectors]) {
  const __m256 by1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
  const __m256 by2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
  const __m256 by4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
  for (__m256& each : v) {
    each = butterfly(each, _mm256_permute_ps(each, 0xB1), by1);
    each = butterfly(each, _mm256_permute_ps(each, 0x4E), by2);
    each = butterfly(each, _mm256_permute2f128_ps(each, each, 1), by4);
  }
#pragma GCC unroll 4
  for (int half = 1; half < kVectors; half *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      if (i & half) continue;
      const __m256 a = v[i], b = v[i + half];
      v[i] = _mm256_add_ps(a, b);
      v[i + half] = _mm256_sub_ps(a, b);
    }
  }
}

GLM53_INLINE __m256 half_vector(const std::uint16_t* halves) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
}

/* 16 features a = 0..7, b = 8..15 to avx2::kOrder, and back. */
GLM53_INLINE void to_order(__m256& a, __m256& b) {
  const __m256d x = _mm256_castps_pd(_mm256_permute_ps(a, 0xB1));
  const __m256d y = _mm256_castps_pd(_mm256_permute_ps(b, 0xB1));
  const __m256 even = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
  const __m256 odd = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
  a = _mm256_permute2f128_ps(even, odd, 0x20);
  b = _mm256_permute2f128_ps(even, odd, 0x31);
}

GLM53_INLINE void from_order(__m256& a, __m256& b) {
  const __m256d even = _mm256_castps_pd(_mm256_permute2f128_ps(a, b, 0x20));
  const __m256d odd = _mm256_castps_pd(_mm256_permute2f128_ps(a, b, 0x31));
  a = _mm256_permute_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(even, odd)), 0xB1);
  b = _mm256_permute_ps(_mm256_castpd_ps(_mm256_unpackhi_pd(even, odd)), 0xB1);
}

/* v = hadamard(x * suh) of one block, in natural order. */
GLM53_INLINE void rotate_block(const float* x, const std::uint16_t* suh, __m256 (&v)[kVectors]) {
  const __m256 scale = _mm256_set1_ps(kHadamardScale);
  for (int i = 0; i < kVectors; ++i) {
    v[i] = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_mul_ps(half_vector(suh + 8 * i), scale));
  }
  hadamard128(v);
}

void rotate_in(const float* x, const std::uint16_t* suh, float* out, std::size_t out_stride,
               std::uint32_t features) {
  for (std::uint32_t at = 0; at < features; at += kBlock, out += out_stride) {
    __m256 v[kVectors];
    rotate_block(x + at, suh + at, v);
    for (int i = 0; i < kVectors; i += 2) {
      to_order(v[i], v[i + 1]);
      _mm256_storeu_ps(out + 8 * i, v[i]);
      _mm256_storeu_ps(out + 8 * i + 8, v[i + 1]);
    }
  }
}

void rotate_out(float* y, const std::uint16_t* svh) {
  const __m256 scale = _mm256_set1_ps(kHadamardScale);
  __m256 v[kVectors];
  for (int i = 0; i < kVectors; ++i) v[i] = _mm256_loadu_ps(y + 8 * i);
  hadamard128(v);
  for (int i = 0; i < kVectors; ++i) {
    const __m256 factor = _mm256_mul_ps(half_vector(svh + 8 * i), scale);
    _mm256_storeu_ps(y + 8 * i, _mm256_mul_ps(v[i], factor));
  }
}

/* Adds one group of one tile to the sums of every row; sums are [tile][row][column pair][2][8]. */
template <std::uint32_t Bits, int G>
GLM53_INLINE void add_group(const std::uint8_t* tile, const float* x, std::uint32_t rows, float* sums) {
  const Weights w = avx2::decode_weights<Bits, G>(tile);
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

GLM53_INLINE float lane_sum(const float* lanes) {
  const __m128 four = _mm_add_ps(_mm_load_ps(lanes), _mm_load_ps(lanes + 4));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
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
      y[n] = lane_sum(sums + (nt * rows + r) * kTileSums + 16 * pair + 8 * high);
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

GLM53_INLINE float largest(__m256 v) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

void quantise(__m256 (&v)[kVectors], Quantised& out) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 most = _mm256_setzero_ps(), total = _mm256_setzero_ps();
  for (const __m256& each : v) {
    most = _mm256_max_ps(most, _mm256_andnot_ps(sign, each));
    total = _mm256_add_ps(total, each);
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, total);
  // A NaN or an infinity anywhere must reach the result: it is in the total, so put it into the scale.
  const float peak = largest(most);
  out.scale = peak / 32767.0f + 0.0f * lane_sum(lanes);
  const __m256 inverse = _mm256_set1_ps(peak > 0.0f ? 32767.0f / peak : 0.0f);
  __m256i sum = _mm256_setzero_si256();
  for (int i = 0; i < kVectors; i += 2) {
    to_order(v[i], v[i + 1]);
    for (int p = 0; p < 2; ++p) {
      const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(v[i + p], inverse));
      sum = _mm256_add_epi32(sum, whole);
      // Both columns of a group use the same rows: every lane of 8 is 4 values, twice.
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.x + 16 * (i + p)), _mm256_packs_epi32(whole, whole));
    }
  }
  _mm256_store_ps(lanes, _mm256_cvtepi32_ps(sum));
  out.sum = lane_sum(lanes);
}

void rotate_in_fast(const float* x, const std::uint16_t* suh, float* out, std::size_t out_stride,
                    std::uint32_t features) {
  for (std::uint32_t at = 0; at < features; at += kBlock, out += out_stride) {
    __m256 v[kVectors];
    rotate_block(x + at, suh + at, v);
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

/* e^x for x <= 0: 2^n * 2^f with f in [-1/2, 1/2], relative error below 2e-7; 0 where it underflows. */
GLM53_INLINE __m256 exp_negative(__m256 x) {
  const __m256 scaled = _mm256_max_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _mm256_set1_ps(-150.0f));
  const __m256 n = _mm256_round_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // The part of x that n log(2) leaves, with log(2) in two pieces so that large |x| stay accurate.
  __m256 f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  f = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), f);
  __m256 p = _mm256_set1_ps(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(c));
  }
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 normal = _mm256_cmp_ps(n, _mm256_set1_ps(-126.0f), _CMP_GE_OQ);
  return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(power)), normal);
}

void activate(float* gate, const float* up, float limit, std::uint32_t count) {
  const __m256 most = _mm256_set1_ps(limit == 0.0f ? __builtin_inff() : limit);
  const __m256 least = _mm256_sub_ps(_mm256_setzero_ps(), most);
  const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
  for (std::uint32_t i = 0; i < count; i += 8) {
    const __m256 g = _mm256_loadu_ps(gate + i);
    // silu(g) = g / (1 + e^-g), written with e^-|g| so that nothing overflows.
    const __m256 e = exp_negative(_mm256_or_ps(g, sign));
    const __m256 top = _mm256_blendv_ps(g, _mm256_mul_ps(g, e), g);
    const __m256 silu = _mm256_div_ps(top, _mm256_add_ps(one, e));
    const __m256 u = _mm256_max_ps(least, _mm256_min_ps(_mm256_loadu_ps(up + i), most));
    _mm256_storeu_ps(gate + i, _mm256_mul_ps(_mm256_min_ps(silu, most), u));
  }
}

GLM53_INLINE void store_column(__m256 a, __m256 b, float* row) {
  from_order(a, b);
  _mm256_store_ps(row, a);
  _mm256_store_ps(row + 8, b);
}

template <std::uint32_t Bits, int G>
GLM53_INLINE void store_group(const std::uint8_t* tile, float* block) {
  const Weights w = avx2::decode_weights<Bits, G>(tile);
  store_column(w.low[0], w.low[1], block + G * kBlock);
  store_column(w.high[0], w.high[1], block + (G + 8) * kBlock);
}

template <std::uint32_t Bits, int... G>
void decode_block(const Trellis& trellis, std::uint32_t in_block, std::uint32_t out_block,
                  float* block, std::integer_sequence<int, G...>) {
  for (std::uint32_t kt = 0; kt < kBlockTiles; ++kt) {
    for (std::uint32_t nt = 0; nt < kBlockTiles; ++nt) {
      const std::uint8_t* tile =
          trellis.tile(in_block * kBlockTiles + kt, out_block * kBlockTiles + nt);
      (store_group<Bits, G>(tile, block + nt * kTile * kBlock + kt * kTile), ...);
    }
  }
}

void hadamard_rows(float* block) {
  for (std::uint32_t half = 1; half < kBlock; half *= 2) {
    for (std::uint32_t n = 0; n < kBlock; ++n) {
      if (n & half) continue;
      float* a = block + n * kBlock;
      float* b = a + half * kBlock;
      for (std::uint32_t k = 0; k < kBlock; k += 8) {
        const __m256 x = _mm256_load_ps(a + k), y = _mm256_load_ps(b + k);
        _mm256_store_ps(a + k, _mm256_add_ps(x, y));
        _mm256_store_ps(b + k, _mm256_sub_ps(x, y));
      }
    }
  }
}

template <std::uint32_t Bits>
void dequant_bits(const Trellis& trellis, std::uint32_t in_block, std::uint32_t out_block, float* block) {
  decode_block<Bits>(trellis, in_block, out_block, block, std::make_integer_sequence<int, 8>{});
  hadamard_rows(block);
  const __m256 scale = _mm256_set1_ps(1.0f / kBlock);  // of both transforms
  for (std::uint32_t n = 0; n < kBlock; ++n) {
    __m256 v[kVectors];
    for (int i = 0; i < kVectors; ++i) v[i] = _mm256_load_ps(block + n * kBlock + 8 * i);
    hadamard128(v);
    for (int i = 0; i < kVectors; ++i) {
      _mm256_store_ps(block + n * kBlock + 8 * i, _mm256_mul_ps(v[i], scale));
    }
  }
}

void dequant_block(const Trellis& trellis, std::uint32_t in_block, std::uint32_t out_block,
                   float* block) {
  constexpr decltype(&dequant_bits<1>) by_bits[9] = {
      nullptr,         dequant_bits<1>, dequant_bits<2>, dequant_bits<3>, dequant_bits<4>,
      dequant_bits<5>, dequant_bits<6>, dequant_bits<7>, dequant_bits<8>};
  by_bits[trellis.bits](trellis, in_block, out_block, block);
}

}  // namespace

const Kernels kAvx2Kernels = {
    GLM53_ISA_AVX2,
    {rotate_in,
     {nullptr, exact_band<1>, exact_band<2>, exact_band<3>, exact_band<4>, exact_band<5>,
      exact_band<6>, exact_band<7>, exact_band<8>}},
    {rotate_in_fast,
     {nullptr, fast_band<1>, fast_band<2>, fast_band<3>, fast_band<4>, fast_band<5>, fast_band<6>,
      fast_band<7>, fast_band<8>}},
    rotate_out,
    activate,
    dequant_block,
};

}  // namespace glm53

#pragma GCC pop_options
