/* The mul1 codebook: a 16-bit state -> one of 1021 fp16 values.
 *
 * value(s) = RN16((1024 + s) * 0.00676727294921875 - 10.3828125) with one rounding, where s is the sum
 * of the four bytes of state * 0x83DCD12D. Both constants are fp16, so before the rounding the value is
 * exactly (1774 s - 905216) / 2^18: integers decide everything here. */
#pragma once

#include <array>
#include <cstdint>

namespace glm53 {

inline constexpr std::uint32_t kMul1 = 0x83DCD12Du;
inline constexpr int kCodebookStep = 1774;
inline constexpr int kCodebookOffset = 905216;
inline constexpr float kCodebookUnit = 1.0f / 262144.0f;
inline constexpr int kCodebookSize = 1021;

constexpr int byte_sum(std::uint32_t state) {
  const std::uint32_t x = state * kMul1;
  return static_cast<int>((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24));
}

/* Round to 11 significant bits, ties to even: what fp16 does in its normal range. */
constexpr int round_to_fp16(int units) {
  const int magnitude = units < 0 ? -units : units;
  int step = 1;
  while (magnitude / step >= 2048) step *= 2;
  int kept = magnitude / step;
  const int rest = magnitude - kept * step;
  if (2 * rest > step || (2 * rest == step && kept % 2 == 1)) ++kept;
  return units < 0 ? -kept * step : kept * step;
}

constexpr std::array<float, kCodebookSize> make_codebook() {
  std::array<float, kCodebookSize> values{};
  for (int s = 0; s < kCodebookSize; ++s) {
    values[s] = static_cast<float>(round_to_fp16(kCodebookStep * s - kCodebookOffset)) * kCodebookUnit;
  }
  return values;
}

inline constexpr std::array<float, kCodebookSize> kCodebook = make_codebook();

inline float codebook_value(std::uint32_t state) { return kCodebook[byte_sum(state)]; }

}  // namespace glm53
