/* AVX-512 with VBMI: all 32 symbols of group g of a tile (its columns g and g+8) in one vector.
 *
 * A byte permutation brings the stream of four symbols into each 64-bit lane, most significant byte
 * last; vpmultishiftqb then reads the two bytes of each state where they start, at any bit.
 * Include only between the target pragmas of bands_avx512.cpp. */
#pragma once

#include <array>
#include <cstdint>

#include "cpu/codebook.h"
#include "cpu/decode_avx2.h"
#include "cpu/kernels.h"
#include "cpu/trellis.h"

namespace glm53::avx512 {

struct alignas(64) Bytes {
  std::array<std::uint8_t, 64> at;
};

/* A group's own words are bits of the vector from word 0 on; the word before them, which holds the
 * beginning of the first windows, is at kBefore. For the first group of a tile that is the ring's end. */
inline constexpr int kBefore = 15;

/* First byte of the stream of lane q's four symbols, from the group's start; -2 or -1 is in kBefore. */
template <std::uint32_t Bits>
constexpr int lane_start(int q) {
  const int bit = (4 * q + 1) * int{Bits} - 16;
  return (bit + 16) / 8 - 2;
}

template <std::uint32_t Bits>
constexpr Bytes lane_bytes() {
  Bytes index{};
  for (int q = 0; q < 8; ++q) {
    for (int byte = 0; byte < 8; ++byte) {
      const int stream = lane_start<Bits>(q) + 7 - byte;
      const int place = avx2::kOneLoad<Bits> ? ((stream + 64) ^ 3) - 64 - avx2::chunk_start<Bits>(0, 0)
                        : stream < 0         ? 4 * kBefore + ((stream + 4) ^ 3)
                                             : (stream ^ 3);
      index.at[8 * q + byte] = static_cast<std::uint8_t>(place & 63);
    }
  }
  return index;
}

/* For each state, the lowest bit of its low and of its high byte in the 64-bit lane. */
template <std::uint32_t Bits>
constexpr Bytes state_shifts() {
  Bytes shifts{};
  for (int t = 0; t < 32; ++t) {
    const int start = (t + 1) * int{Bits} - 16 - 8 * lane_start<Bits>(t / 4);
    shifts.at[2 * t] = static_cast<std::uint8_t>(48 - start);
    shifts.at[2 * t + 1] = static_cast<std::uint8_t>(56 - start);
  }
  return shifts;
}

template <std::uint32_t Bits>
inline constexpr Bytes kLaneBytes = lane_bytes<Bits>();
template <std::uint32_t Bits>
inline constexpr Bytes kStateShifts = state_shifts<Bits>();

/* The group's words from 0 on, and the word before them at kBefore. Reads nothing else. */
template <std::uint32_t Bits, int G>
GLM53_INLINE __m512i load_words(const std::uint8_t* tile) {
  if constexpr (avx2::kOneLoad<Bits>) return _mm512_broadcast_i32x4(avx2::load_chunk<Bits, G, 0>(tile));
  constexpr __mmask16 own = (1u << Bits) - 1;
  constexpr int before = (G == 0 ? 8 : G) * int{Bits} - 1;
  const __m512i words = _mm512_maskz_loadu_epi32(own, tile + 4 * G * int{Bits});
  return _mm512_mask_set1_epi32(words, 1u << kBefore, static_cast<int>(tile_word(tile, before)));
}

/* States of the 32 symbols, in order, in 16-bit lanes. */
template <std::uint32_t Bits, int G>
GLM53_INLINE __m512i states(const std::uint8_t* tile) {
  const __m512i streams =
      _mm512_permutexvar_epi8(_mm512_load_si512(&kLaneBytes<Bits>), load_words<Bits, G>(tile));
  return _mm512_multishift_epi64_epi8(_mm512_load_si512(&kStateShifts<Bits>), streams);
}

/* Byte sums of their products with the multiplier: 0..1020. */
template <std::uint32_t Bits, int G>
GLM53_INLINE __m512i byte_sums(const std::uint8_t* tile) {
  const __m512i low_factor = _mm512_set1_epi16(static_cast<short>(kMul1 & 0xffff));
  const __m512i high_factor = _mm512_set1_epi16(static_cast<short>(kMul1 >> 16));
  const __m512i ones = _mm512_set1_epi8(1);
  const __m512i v = states<Bits, G>(tile);
  const __m512i low = _mm512_mullo_epi16(v, low_factor);
  const __m512i high =
      _mm512_add_epi16(_mm512_mulhi_epu16(v, low_factor), _mm512_mullo_epi16(v, high_factor));
  return _mm512_add_epi16(_mm512_maddubs_epi16(low, ones), _mm512_maddubs_epi16(high, ones));
}

/* The fp16 codebook values, exactly; see decode_avx2.h for the rounding. In each 128-bit lane of 8
 * symbols, low has the first four (column g), high the others (column g+8). */
struct Weights {
  __m512 low;
  __m512 high;
};

GLM53_INLINE __m512 rounded(__m512i sums) {
  constexpr float step = kCodebookStep * kCodebookUnit;
  constexpr double shifted = -(8388608.0 * kCodebookStep + kCodebookOffset) * kCodebookUnit;
  const __m512 far = _mm512_fmadd_ps(_mm512_castsi512_ps(sums), _mm512_set1_ps(8192.0f * step),
                                     _mm512_set1_ps(8192.0f * static_cast<float>(shifted)));
  return _mm512_sub_ps(_mm512_mul_ps(far, _mm512_set1_ps(1.0f + 0x1p-13f)), far);
}

template <std::uint32_t Bits, int G>
GLM53_INLINE Weights decode_weights(const std::uint8_t* tile) {
  const __m512i sums = byte_sums<Bits, G>(tile), exponent = _mm512_set1_epi16(0x4B00);
  return {rounded(_mm512_unpacklo_epi16(sums, exponent)), rounded(_mm512_unpackhi_epi16(sums, exponent))};
}

}  // namespace glm53::avx512
