/* What a glm53_cpu handle is, for the translation units of the C border. */
#pragma once

#include <atomic>
#include <mutex>

#include "abi.h"
#include "core/check.h"
#include "cpu/kernels.h"
#include "cpu/linear.h"
#include "cpu/pool.h"

struct glm53_cpu {
  const glm53::Kernels& kernels;
  const glm53::Arithmetic& arithmetic;
  glm53::Pool pool;
  glm53::Scratch scratch;
  std::mutex mutex;
  std::atomic<bool> abandoned{false};  // a thread that never came back still uses all this

  glm53::Engine engine() { return {pool, arithmetic, kernels.dense}; }
};

namespace glm53 {

/* The reason of this thread's last refusal, for glm53_last_error(). */
extern thread_local char last_error[240];

template <class Body>
int guard(Body&& body) {
  return guarded(last_error, body);
}

}  // namespace glm53
