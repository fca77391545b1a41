/* AVX2: the Hadamard rotation of a block of 128, and what goes into and comes out of it.
 * Include only between the target pragmas of a .cpp. */
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace glm53::avx2 {

inline constexpr float kHadamardScale = 0.08838834764831845f;  // 1 / sqrt(128)
inline constexpr int kVectors = 16;                            // of 8 floats: one block

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

/* v = hadamard(x * suh) of one block, in natural order. */
GLM53_INLINE void rotate_block(const float* x, const std::uint16_t* suh, __m256 (&v)[kVectors]) {
  const __m256 scale = _mm256_set1_ps(kHadamardScale);
  for (int i = 0; i < kVectors; ++i) {
    v[i] = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_mul_ps(half_vector(suh + 8 * i), scale));
  }
  hadamard128(v);
}

GLM53_INLINE float lane_sum(__m256 v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

GLM53_INLINE float largest_lane(__m256 v) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* int16 = round(float * inverse), float ~ int16 * scale, for one block. */
struct Scale {
  float scale;
  float inverse;
};

GLM53_INLINE Scale scale_of(const __m256 (&v)[kVectors]) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 most = _mm256_setzero_ps(), total = _mm256_setzero_ps();
  for (const __m256& each : v) {
    most = _mm256_max_ps(most, _mm256_andnot_ps(sign, each));
    total = _mm256_add_ps(total, each);
  }
  // A NaN or an infinity anywhere must reach the result: it is in the total, so put it into the scale.
  const float peak = largest_lane(most);
  return {peak / 32767.0f + 0.0f * lane_sum(total), peak > 0.0f ? 32767.0f / peak : 0.0f};
}

}  // namespace glm53::avx2
