/* Where the weights of an EXL3 trellis are: tiles, symbols, bits.
 *
 * A trellis is [in/16][out/16] tiles of 256 weights in 32*bits bytes. Symbol t of a tile is the 16-bit
 * window that ends at bit (t+1)*bits of a ring of 256*bits bits; words are little-endian uint32 whose
 * most significant bit comes first. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace glm53 {

inline constexpr std::uint32_t kTile = 16;           // rows and columns of a tile
inline constexpr std::uint32_t kTileWeights = 256;
inline constexpr std::uint32_t kBlock = 128;         // features under one Hadamard transform
inline constexpr std::uint32_t kBlockTiles = kBlock / kTile;

constexpr std::size_t tile_bytes(std::uint32_t bits) { return 32 * std::size_t{bits}; }

/* Input (row) and output (column) index of symbol t inside its tile. */
constexpr std::uint32_t symbol_row(std::uint32_t t) {
  const std::uint32_t lane = t / 8, j = t % 4;
  return 2 * (lane % 4) + (j & 1) + (j & 2 ? 8 : 0);
}
constexpr std::uint32_t symbol_column(std::uint32_t t) { return t / 32 + (t % 8 >= 4 ? 8 : 0); }

inline std::uint32_t tile_word(const std::uint8_t* tile, std::uint32_t index) {
  std::uint32_t word;
  std::memcpy(&word, tile + 4 * std::size_t{index}, 4);
  return word;
}

inline std::uint32_t symbol_state(const std::uint8_t* tile, std::uint32_t bits, std::uint32_t t) {
  const std::uint32_t words = 8 * bits;
  const std::uint32_t end = (t + 1) * bits + 256 * bits;
  const std::uint32_t first = (end - 16) / 32 % words, last = (end - 1) / 32 % words;
  const std::uint32_t shift = ((end - 1) / 32 + 1) * 32 - end;
  const std::uint64_t window = std::uint64_t{tile_word(tile, first)} << 32 | tile_word(tile, last);
  return static_cast<std::uint32_t>(window >> shift) & 0xffffu;
}

/* The trellis of one linear. */
struct Trellis {
  const std::uint8_t* data;
  std::uint32_t bits;
  std::uint32_t in_features;
  std::uint32_t out_features;

  std::size_t row_bytes() const { return out_features / kTile * tile_bytes(bits); }
  const std::uint8_t* tile(std::uint32_t in_tile, std::uint32_t out_tile) const {
    return data + in_tile * row_bytes() + out_tile * tile_bytes(bits);
  }
};

}  // namespace glm53
