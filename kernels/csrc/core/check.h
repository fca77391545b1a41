/* Refusals inside the libraries: thrown, and turned into a status and a message at the C border. */
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>

#include "abi.h"

namespace glm53 {

struct Refusal {
  int status;
  char message[240];
};

[[noreturn, gnu::format(printf, 2, 3)]] inline void refuse(int status, const char* format, ...) {
  Refusal refusal{status, {}};
  va_list rest;
  va_start(rest, format);
  std::vsnprintf(refusal.message, sizeof refusal.message, format, rest);
  va_end(rest);
  throw refusal;
}

#define GLM53_CHECK(condition, ...) \
  do {                              \
    if (!(condition)) ::glm53::refuse(GLM53_BAD_ARGUMENT, __VA_ARGS__); \
  } while (0)

/* Non-null and aligned for its element type. */
template <class T>
const T* checked(const void* pointer, const char* name) {
  GLM53_CHECK(pointer != nullptr, "%s is null", name);
  GLM53_CHECK(reinterpret_cast<std::uintptr_t>(pointer) % alignof(T) == 0,
              "%s (%p) is not aligned to %zu bytes", name, pointer, alignof(T));
  return static_cast<const T*>(pointer);
}

template <class Args>
void check_struct(const Args* args, const char* name) {
  GLM53_CHECK(args != nullptr, "%s is null", name);
  GLM53_CHECK(args->size == sizeof(Args), "%s has size %u, this library expects %zu", name,
              args->size, sizeof(Args));
}

/* Runs body, records what it refused. Nothing escapes. */
template <class Body>
int guarded(char (&error)[240], Body&& body) noexcept {
  const char* reason = "";
  int status = GLM53_OK;
  try {
    body();
    return GLM53_OK;
  } catch (const Refusal& refusal) {
    std::snprintf(error, sizeof error, "%s", refusal.message);
    return refusal.status;
  } catch (const std::bad_alloc&) {
    status = GLM53_OUT_OF_MEMORY;
    reason = "out of memory";
  } catch (const std::exception& failure) {
    status = GLM53_INTERNAL;
    std::snprintf(error, sizeof error, "%s", failure.what());
    return status;
  }
  std::snprintf(error, sizeof error, "%s", reason);
  return status;
}

}  // namespace glm53
