/* AVX2: the 32 symbols of group g of a tile, which are its columns g and g+8.
 *
 * Two symbols share a 32-bit window (16 + bits <= 24 bits, plus 7 of byte alignment), so one byte shuffle
 * and two shifts give 16 states in 16-bit lanes. The 32-bit product with the codebook multiplier is put
 * together from 16-bit products, which costs less than vpmulld and needs no masks. Include only between
 * the target pragmas of a kernels_*.cpp. */
#pragma once

#include <array>
#include <cstdint>

#include "cpu/codebook.h"
#include "cpu/kernels.h"
#include "cpu/trellis.h"

namespace glm53::avx2 {

struct alignas(32) Bytes {
  std::array<std::int8_t, 32> at;
};
struct alignas(32) Words {
  std::array<std::uint32_t, 8> at;
};

/* Input features in the order of the weight lanes: position i of 16 holds feature kOrder[i]. */
inline constexpr std::array<int, 16> kOrder = {1, 0, 9, 8, 3, 2, 11, 10, 5, 4, 13, 12, 7, 6, 15, 14};

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

/* Up to 3 bits, one 16-byte load covers all 32 symbols; above, each 8 symbols have their own. */
template <std::uint32_t Bits>
constexpr bool kOneLoad = Bits <= 3;

/* First byte, from the tile's start, of the 16 loaded for chunk i (8 symbols) of group g. Negative:
 * the ring wraps, the bytes before the start are those of the tile's end. */
template <std::uint32_t Bits>
constexpr int chunk_start(int g, int i) {
  const int words = kOneLoad<Bits> ? int{Bits} : (int{Bits} * (i + 1) + 3) / 4;
  return 4 * (g * int{Bits} + words) - 16;
}

/* Ends, in bits from the tile's start, of the second symbol of pair m of a chunk. */
template <std::uint32_t Bits>
constexpr int pair_end(int g, int i, int m) {
  return (32 * g + 8 * i + 2 * m + 2) * int{Bits};
}

/* Byte shuffle: dword m of lane i%2 becomes the big-endian window that ends with pair m of chunk i. */
template <std::uint32_t Bits>
constexpr Bytes window_shuffle(int p) {
  Bytes shuffle{};
  for (int lane = 0; lane < 2; ++lane) {
    for (int m = 0; m < 4; ++m) {
      const int i = 2 * p + lane, last = (pair_end<Bits>(0, i, m) + 7) / 8 - 1;
      for (int byte = 0; byte < 4; ++byte) {
        const int stream = last - byte + 1024;  // kept positive: the word order is by exclusive-or
        shuffle.at[16 * lane + 4 * m + byte] =
            static_cast<std::int8_t>((stream ^ 3) - 1024 - chunk_start<Bits>(0, i));
      }
    }
  }
  return shuffle;
}

/* Right shift that brings the second state of each pair to the low half. */
template <std::uint32_t Bits>
constexpr Words second_shift() {
  Words shift{};
  for (int m = 0; m < 8; ++m) shift.at[m] = (8 - pair_end<Bits>(0, 0, m % 4) % 8) % 8;
  return shift;
}

/* Left shift that brings the first state of each pair to the high half. */
template <std::uint32_t Bits>
constexpr Words first_shift() {
  Words shift = second_shift<Bits>();
  for (std::uint32_t& s : shift.at) s = 16 - Bits - s;
  return shift;
}

template <std::uint32_t Bits>
inline constexpr Bytes kWindow[2] = {window_shuffle<Bits>(0), window_shuffle<Bits>(1)};
template <std::uint32_t Bits>
inline constexpr Words kSecond = second_shift<Bits>();
template <std::uint32_t Bits>
inline constexpr Words kFirst = first_shift<Bits>();

template <class T>
GLM53_INLINE __m256i vector_of(const T& constant) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(&constant));
}

template <std::uint32_t Bits, int G, int I>
GLM53_INLINE __m128i load_chunk(const std::uint8_t* tile) {
  constexpr int start = chunk_start<Bits>(G, I);
  const auto* at = reinterpret_cast<const __m128i*>(tile + (start < 0 ? 0 : start));
  if constexpr (start >= 0) {
    return _mm_loadu_si128(at);
  } else {
    const auto* end = reinterpret_cast<const __m128i*>(tile + tile_bytes(Bits) - 16);
    return _mm_alignr_epi8(_mm_loadu_si128(at), _mm_loadu_si128(end), 16 + start);
  }
}

template <std::uint32_t Bits, int G, int P>
GLM53_INLINE __m256i load_windows(const std::uint8_t* tile) {
  if constexpr (kOneLoad<Bits>) return _mm256_broadcastsi128_si256(load_chunk<Bits, G, 0>(tile));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_chunk<Bits, G, 2 * P>(tile)),
                                 load_chunk<Bits, G, 2 * P + 1>(tile), 1);
}

/* The states of a group: v[p] has chunks 2p and 2p+1 in its lanes, the symbols of each pair swapped. */
template <std::uint32_t Bits, int G>
GLM53_INLINE void load_states(const std::uint8_t* tile, __m256i (&states)[2]) {
  const __m256i a = _mm256_shuffle_epi8(load_windows<Bits, G, 0>(tile), vector_of(kWindow<Bits>[0]));
  const __m256i b = _mm256_shuffle_epi8(load_windows<Bits, G, 1>(tile), vector_of(kWindow<Bits>[1]));
  const __m256i a2 = _mm256_srlv_epi32(a, vector_of(kSecond<Bits>));
  const __m256i b2 = _mm256_srlv_epi32(b, vector_of(kSecond<Bits>));
  const __m256i a1 = _mm256_sllv_epi32(a, vector_of(kFirst<Bits>));
  const __m256i b1 = _mm256_sllv_epi32(b, vector_of(kFirst<Bits>));
  states[0] = _mm256_blend_epi16(a2, a1, 0xAA);
  states[1] = _mm256_blend_epi16(b2, b1, 0xAA);
}

/* Byte sums of the product of 16 states, in 16-bit lanes: 0..1020. */
GLM53_INLINE void byte_sums(__m256i (&v)[2]) {
  const __m256i low_factor = _mm256_set1_epi16(static_cast<short>(kMul1 & 0xffff));
  const __m256i high_factor = _mm256_set1_epi16(static_cast<short>(kMul1 >> 16));
  const __m256i ones = _mm256_set1_epi8(1);
  const __m256i a = _mm256_mulhi_epu16(v[0], low_factor), b = _mm256_mulhi_epu16(v[1], low_factor);
  const __m256i c = _mm256_mullo_epi16(v[0], high_factor), d = _mm256_mullo_epi16(v[1], high_factor);
  const __m256i low0 = _mm256_mullo_epi16(v[0], low_factor), low1 = _mm256_mullo_epi16(v[1], low_factor);
  const __m256i high0 = _mm256_add_epi16(a, c), high1 = _mm256_add_epi16(b, d);
  const __m256i e = _mm256_maddubs_epi16(low0, ones), f = _mm256_maddubs_epi16(low1, ones);
  const __m256i g = _mm256_maddubs_epi16(high0, ones), h = _mm256_maddubs_epi16(high1, ones);
  v[0] = _mm256_add_epi16(e, g);
  v[1] = _mm256_add_epi16(f, h);
}

/* Weights of 16 rows of two columns: low[p] is column g, high[p] column g+8, rows in kOrder[8p..]. */
struct Weights {
  __m256 low[2];
  __m256 high[2];
};

/* The fp16 codebook values, exactly. The byte sum s is read as float32 2^23 + s (its bits under the
 * exponent of 2^23); (8192 v)(1 + 2^-13) - 8192 v then rounds v to 11 bits, ties to even. */
template <std::uint32_t Bits, int G>
GLM53_INLINE Weights decode_weights(const std::uint8_t* tile) {
  constexpr float step = kCodebookStep * kCodebookUnit;
  constexpr double shifted = -(8388608.0 * kCodebookStep + kCodebookOffset) * kCodebookUnit;
  static_assert(static_cast<double>(static_cast<float>(shifted)) == shifted);
  __m256i v[2];
  load_states<Bits, G>(tile, v);
  byte_sums(v);
  const __m256i exponent = _mm256_set1_epi16(0x4B00);
  __m256 w[4] = {_mm256_castsi256_ps(_mm256_unpacklo_epi16(v[0], exponent)),
                 _mm256_castsi256_ps(_mm256_unpacklo_epi16(v[1], exponent)),
                 _mm256_castsi256_ps(_mm256_unpackhi_epi16(v[0], exponent)),
                 _mm256_castsi256_ps(_mm256_unpackhi_epi16(v[1], exponent))};
  // Step by step over all four, so that none waits for its own last result.
  __m256 rounded[4];
  for (__m256& each : w) {
    each = _mm256_fmadd_ps(each, _mm256_set1_ps(8192.0f * step),
                           _mm256_set1_ps(8192.0f * static_cast<float>(shifted)));
  }
  for (int i = 0; i < 4; ++i) rounded[i] = _mm256_mul_ps(w[i], _mm256_set1_ps(1.0f + 0x1p-13f));
  for (int i = 0; i < 4; ++i) w[i] = _mm256_sub_ps(rounded[i], w[i]);
  return {{w[0], w[1]}, {w[2], w[3]}};
}

}  // namespace glm53::avx2
