/* The contract between the native libraries and Python: everything that crosses is declared here.
 *
 * Rules: every struct that is passed alone starts with its own size; every function returns a
 * glm53_status and leaves its reason in glm53_last_error() (per thread); no function throws, exits
 * or keeps a caller's pointer after it returned. scripts/gen_abi.py mirrors this file to
 * glm53_kernels/_abi.py: it understands exactly the plain style used below. */
#ifndef GLM53_ABI_H
#define GLM53_ABI_H

#include <stdint.h>

#define GLM53_ABI_VERSION 3

#ifdef __cplusplus
#define GLM53_API extern "C" __attribute__((visibility("default")))
#else
#define GLM53_API __attribute__((visibility("default")))
#endif

enum glm53_status {
  GLM53_OK = 0,
  GLM53_BAD_ARGUMENT = 1,
  GLM53_UNSUPPORTED = 2,
  GLM53_OUT_OF_MEMORY = 3,
  GLM53_INTERNAL = 4,
};

enum glm53_isa {
  GLM53_ISA_AUTO = 0,
  GLM53_ISA_SCALAR = 1,
  GLM53_ISA_AVX2 = 2,
  GLM53_ISA_AVX512 = 3,
};

/* EXACT: the codebook's fp16 values bit for bit, float32 activations.
 * FAST: about 2.1e-4 relative RMS of each linear, at up to twice the speed. */
enum glm53_precision {
  GLM53_PRECISION_EXACT = 0,
  GLM53_PRECISION_FAST = 1,
};

/* One EXL3 linear with the mul1 codebook: trellis int16 [in/16, out/16, 16*bits], suh fp16 [in],
 * svh fp16 [out]. in_features and out_features are multiples of 128, bits is 1..8. */
typedef struct glm53_linear {
  uint32_t size;
  uint32_t bits;
  uint32_t in_features;
  uint32_t out_features;
  uint64_t trellis_bytes;
  const void* trellis;
  const void* suh;
  const void* svh;
} glm53_linear;

/* One routed expert, an element of a table (so without a size of its own). All null: not here. */
typedef struct glm53_expert {
  const void* gate_trellis;
  const void* gate_suh;
  const void* gate_svh;
  const void* up_trellis;
  const void* up_suh;
  const void* up_svh;
  const void* down_trellis;
  const void* down_suh;
  const void* down_svh;
} glm53_expert;

/* A worker pool with its scratch memory. Calls on one handle are serialised. */
typedef struct glm53_cpu glm53_cpu;

/* threads counts the calling thread. cpus (optional, [threads]) pins worker i to cpus[i]; entry 0
 * belongs to the calling thread, which is never pinned by the library. */
typedef struct glm53_cpu_open_args {
  uint32_t size;
  uint32_t isa;
  uint32_t precision;
  uint32_t threads;
  uint32_t cpus_count;
  uint32_t reserved;
  const int32_t* cpus;
} glm53_cpu_open_args;

typedef struct glm53_cpu_info {
  uint32_t size;
  uint32_t isa;
  uint32_t threads;
  uint32_t best_isa;
} glm53_cpu_info;

/* out: float32 [out_features, in_features], the layout of a torch Linear weight. */
typedef struct glm53_cpu_linear_dequant_args {
  uint32_t size;
  uint32_t reserved;
  const glm53_linear* linear;
  float* out;
  uint64_t out_bytes;
} glm53_cpu_linear_dequant_args;

/* out [rows, out_features] = x [rows, in_features] through the linear, float32. */
typedef struct glm53_cpu_linear_forward_args {
  uint32_t size;
  uint32_t rows;
  const glm53_linear* linear;
  const float* x;
  float* out;
} glm53_cpu_linear_forward_args;

/* out [rows, hidden] += sum over picks of weight * expert(x[row]), float32.
 * x and out must not overlap. act_limit 0 means no clamp. */
typedef struct glm53_cpu_expert_forward_args {
  uint32_t size;
  uint32_t hidden;
  uint32_t intermediate;
  uint32_t gate_bits;
  uint32_t up_bits;
  uint32_t down_bits;
  uint32_t experts;
  uint32_t rows;
  uint32_t picks;
  float act_limit;
  const glm53_expert* table;
  const float* x;
  float* out;
  const int32_t* pick_expert;
  const int32_t* pick_row;
  const float* pick_weight;
} glm53_cpu_expert_forward_args;

/* The CPU tier of fast mode (cpu/tier.h). */
typedef struct glm53_cpu_tier glm53_cpu_tier;

/* tables has layers * experts entries and is copied; mailbox has glm53_cpu_tier_mailbox_bytes and
 * is aligned to 64. watchdog_ms: how long a job may take before the GPU is released. */
typedef struct glm53_cpu_tier_args {
  uint32_t size;
  uint32_t layers;
  uint32_t experts;
  uint32_t hidden;
  uint32_t intermediate;
  uint32_t gate_bits;
  uint32_t up_bits;
  uint32_t down_bits;
  float act_limit;
  uint32_t watchdog_ms;
  const glm53_expert* tables;
  void* mailbox;
} glm53_cpu_tier_args;

typedef struct glm53_cpu_tier_counters {
  uint32_t size;
  uint32_t aborted;
  uint64_t jobs;
  uint64_t experts;
  uint64_t picks;
  uint64_t busy_ns;
  uint64_t max_busy_ns;
  uint64_t timeouts;
} glm53_cpu_tier_counters;

/* One cache step of one layer (core/cache_policy.h), callable without a GPU. heat and last are those of all
 * keys; the picked ones are updated, except with lookahead: then picks are a guess, best first, and
 * nothing counts as used. result: 5 int32 hits, admitted, evicted, no_victim, invalid; admissions:
 * 3 int32 each (expert, slot, evicted key). measured: the warmth of so many slots from the hand on is
 * computed before the decision, as the GPU does. */
typedef struct glm53_cache_step_args {
  uint32_t size;
  int32_t num_picks;
  int32_t layer;
  int32_t experts;
  int32_t slots;
  int32_t admit_limit;
  float gpu_share;
  float dither;
  uint32_t now;
  uint32_t lookahead;
  int32_t measured;
  uint32_t reserved;
  const int32_t* picks;
  const int32_t* resident;
  const int32_t* owner;
  uint32_t* heat;
  uint32_t* last;
  uint32_t* busy;
  int32_t* hand;
  int32_t* admissions;
  int32_t* result;
} glm53_cache_step_args;

/* Bytes for one place in memory, an element of a list (so without a size of its own): from memory, or, where
 * `from` is null, from an open file at `offset`. */
typedef struct glm53_piece {
  void* to;
  const void* from;
  uint64_t bytes;
  uint64_t offset;
  int32_t file;
  uint32_t reserved;
} glm53_piece;

/* Common to every library. */
GLM53_API uint32_t glm53_abi_version(void);
GLM53_API uint32_t glm53_struct_size(const char* name);
GLM53_API const char* glm53_build_id(void);
GLM53_API const char* glm53_last_error(void);

/* libglm53_cpu.so */
GLM53_API int glm53_cpu_open(const glm53_cpu_open_args* args, glm53_cpu** out);
GLM53_API int glm53_cpu_close(glm53_cpu* cpu);
/* Fault injection for tests: the pool loses a worker, between two jobs or (in_job) inside its next one. */
GLM53_API int glm53_cpu_lose_worker(glm53_cpu* cpu, uint32_t in_job);
GLM53_API int glm53_cpu_describe(glm53_cpu* cpu, glm53_cpu_info* out);
GLM53_API int glm53_cpu_linear_dequant(glm53_cpu* cpu, const glm53_cpu_linear_dequant_args* args);
GLM53_API int glm53_cpu_linear_forward(glm53_cpu* cpu, const glm53_cpu_linear_forward_args* args);
GLM53_API int glm53_cpu_expert_forward(glm53_cpu* cpu, const glm53_cpu_expert_forward_args* args);
GLM53_API int glm53_cpu_tier_mailbox_bytes(uint32_t hidden, uint64_t* out);
GLM53_API int glm53_cpu_tier_open(glm53_cpu* cpu, const glm53_cpu_tier_args* args, glm53_cpu_tier** out);
/* ended 0: a thread of the pool never came back. Then its memory, the pool's and the mailbox must stay. */
GLM53_API int glm53_cpu_tier_close(glm53_cpu_tier* tier, int32_t* ended);
GLM53_API int glm53_cpu_tier_stats(glm53_cpu_tier* tier, glm53_cpu_tier_counters* out);
GLM53_API int glm53_cpu_tier_reset(glm53_cpu_tier* tier, int32_t* accepted);
GLM53_API int glm53_cpu_cache_step(const glm53_cache_step_args* args);
/* Write pieces one after the other; any thread may. written: bytes of all that came before the first that a
 * file could not give whole; error: that file's errno, 0 when it ended. All were written: their sum, 0. */
GLM53_API int glm53_cpu_fill(const glm53_piece* pieces, uint64_t count, uint64_t* written, int32_t* error);

#endif
