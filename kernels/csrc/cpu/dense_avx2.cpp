/* AVX2 + FMA + F16C: what is done to whole blocks of 128: rotation, activation, dequantisation.
 * Only this file's own functions are compiled for them, by the pragma below. */
#include <immintrin.h>

#include <cstdint>
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

void rotate_out(float* y, const std::uint16_t* svh) {
  const __m256 scale = _mm256_set1_ps(avx2::kHadamardScale);
  __m256 v[kVectors];
  for (int i = 0; i < kVectors; ++i) v[i] = _mm256_loadu_ps(y + 8 * i);
  avx2::hadamard128(v);
  for (int i = 0; i < kVectors; ++i) {
    const __m256 factor = _mm256_mul_ps(avx2::half_vector(svh + 8 * i), scale);
    _mm256_storeu_ps(y + 8 * i, _mm256_mul_ps(v[i], factor));
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
  avx2::from_order(a, b);
  _mm256_store_ps(row, a);
  _mm256_store_ps(row + 8, b);
}

template <std::uint32_t Bits, int G>
GLM53_INLINE void store_group(const std::uint8_t* tile, float* block) {
  const avx2::Weights w = avx2::decode_weights<Bits, G>(tile);
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
    avx2::hadamard128(v);
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

const Dense kAvx2Dense = {rotate_out, activate, dequant_block};

}  // namespace glm53

#pragma GCC pop_options
