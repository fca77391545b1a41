/* Filling memory from memory and files, many pieces at a call: the caller's threads need their interpreter
 * once for all of them, not several times for each. */
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "cpu/handle.h"

namespace glm53 {
namespace {

constexpr std::uint64_t kMostAtOnce = 1u << 30;  // Linux reads no 2 GiB at a time

/* Reads a piece; returns its bytes, fewer where the file ended or failed with `error`. */
std::uint64_t read_piece(const glm53_piece& piece, std::int32_t& error) {
  std::uint64_t done = 0;
  while (done < piece.bytes) {
    const ssize_t count = pread(piece.file, static_cast<char*>(piece.to) + done,
                                std::min(piece.bytes - done, kMostAtOnce),
                                static_cast<off_t>(piece.offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) error = errno;
    if (count <= 0) break;
    done += static_cast<std::uint64_t>(count);
  }
  return done;
}

}  // namespace
}  // namespace glm53

using namespace glm53;

int glm53_cpu_fill(const glm53_piece* pieces, uint64_t count, uint64_t* written, int32_t* error) {
  return guard([&] {
    GLM53_CHECK(pieces != nullptr || count == 0, "pieces is null");
    GLM53_CHECK(written != nullptr && error != nullptr, "written or error is null");
    *written = 0;
    *error = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const glm53_piece& piece = pieces[i];
      GLM53_CHECK(piece.to != nullptr || piece.bytes == 0, "piece %llu goes nowhere",
                  static_cast<unsigned long long>(i));
      std::uint64_t done = piece.bytes;
      if (piece.from == nullptr) {
        done = read_piece(piece, *error);
      } else {
        std::memcpy(piece.to, piece.from, piece.bytes);
      }
      *written += done;
      if (done < piece.bytes) return;
    }
  });
}
