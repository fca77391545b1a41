/* The contract of libglm53_cuda.so. Every pointer is a device address unless it says host. Nothing
 * here allocates or synchronises, the copier's life apart; the stream is a cudaStream_t. 0 is success, everything else has
 * its text in glm53_cuda_last_error(). */
#pragma once
#include <stdint.h>

#define GLM53_CUDA_ABI_VERSION 7
#define GLM53_NUM_COUNTERS 10

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint64_t source, destination; /* addresses of one expert record */
} glm53_copy_job;

/* Where every routed expert lives. A key is layer * experts + expert. */
typedef struct {
    uint32_t size; /* sizeof(glm53_residency) */
    int32_t layers, experts, slots;
    uint64_t home;         /* record of key k is at home + k * record_bytes (pinned host memory) */
    uint64_t record_bytes; /* gate, up, down trellis back to back; a multiple of 16 */
    uint64_t up_offset, down_offset;
    const uint64_t* tables; /* [layers][3] addresses of exllamav3's int64 pointer tables */
    int32_t* slot_of;       /* [layers * experts] slot or -1 */
    int32_t* owner;         /* [slots] key or -1 */
    uint64_t* slot_address; /* [slots] */
    uint32_t* locked;       /* bitset [slots]: never a victim */
    uint32_t* heat;         /* [layers * experts] aged picks in decode, as of `last` (core/cache_policy.h) */
    uint32_t* last;         /* [layers * experts] decode step of the last pick: counters' steps / layers */
    int32_t* hand;          /* [1] */
    uint64_t* counters;     /* [GLM53_NUM_COUNTERS] hits misses admitted evicted no_victim invalid steps bad
                               lookahead lookahead_waits */
    glm53_copy_job* jobs;   /* [256] */
    int32_t* num_jobs;      /* [1] */
    int32_t* num_cpu;       /* [1] picks that the last step posted to the CPU tier */
    int32_t* pending;       /* [2 + 2 * 16] looked ahead and under way: count, sequence, then (key, slot) each.
                               Such a slot is locked and owned by nobody until a step finds its copy done. */
    uint64_t copy_box;      /* device alias of the copy box (core/copy_box.h), 0: nothing is looked ahead */
} glm53_residency;

/* One decode step of one layer. mailbox == 0: no CPU tier, misses that are not admitted stay at home. */
typedef struct {
    uint32_t size; /* sizeof(glm53_step) */
    int32_t layer;
    int32_t num_picks; /* rows * per_row */
    int32_t per_row;
    int32_t admit_limit;
    float gpu_share; /* share of the misses to admit, with the tier */
    float dither;    /* added to the misses' share before it is rounded down */
    uint32_t sequence;
    uint32_t hidden;
    uint32_t lookahead; /* 1: picks are a guess for the next layer, best first: nothing counts as used, the
                           copies go to the copy box, if the last ones are done, and `layer` is at least 1 */
    int32_t num_protected; /* with lookahead */
    const int64_t* picks; /* [num_picks] expert ids */
    const void* x;        /* fp16 [rows, hidden] */
    void* weights;        /* fp16 [num_picks]; picks that go to the CPU are set to 0 */
    uint64_t mailbox;     /* device alias of the mailbox (core/mailbox.h) */
    const int64_t* protected_picks; /* [num_protected] of layer - 1: its slots are in use and stay */
} glm53_step;

const char* glm53_cuda_last_error(void);
const char* glm53_cuda_build_id(void);
uint32_t glm53_cuda_abi_version(void);
uint32_t glm53_cuda_sizeof_residency(void);
uint32_t glm53_cuda_sizeof_step(void);

/* Decide one decode step of one layer, rewrite the pointer tables and post the CPU's share. */
int glm53_cache_step(const glm53_residency* state, const glm53_step* step, void* stream);
/* Let the stream wait until the mailbox reports `sequence` done. */
int glm53_mailbox_wait(const glm53_step* step, void* stream);
/* final float [rows, hidden] += the CPU tier's sum, if the step posted any. */
int glm53_combine(const glm53_residency* state, const glm53_step* step, float* final, void* stream);
/* Move the records that the last cache_step admitted. */
int glm53_gather(const glm53_residency* state, int32_t blocks, void* stream);
/* Rewrite the tables of `num_layers` layers from residency; a non-zero entry of
 * overrides [layers * experts] (may be null) wins over it. */
int glm53_tables_rebuild(const glm53_residency* state, int32_t first_layer, int32_t num_layers,
                         const uint64_t* overrides, void* stream);
/* Empty every slot in [first, first + count); with lock != 0 they stay empty until unlocked. */
int glm53_slots_evict(const glm53_residency* state, int32_t first, int32_t count, int32_t lock, void* stream);
/* Make slots [first, first+count) hold keys[count] (device int32, -1 skips): their bytes are already there. */
int glm53_slots_adopt(const glm53_residency* state, int32_t first, int32_t count, const int32_t* keys, void* stream);
/* Compare every owned slot with its home record and every table entry with residency; adds what
 * differs to counters[7]. */
int glm53_verify(const glm53_residency* state, void* stream);

/* Host memory. `pointer` is page aligned. */
int glm53_host_register(uint64_t pointer, uint64_t bytes, uint64_t* device_alias);
int glm53_host_unregister(uint64_t pointer);
/* Enqueue a copy from registered host memory to the device. */
int glm53_copy_async(uint64_t destination, uint64_t source, uint64_t bytes, void* stream);


/* Look-ahead: a thread that copies what look-ahead steps post into the copy box (zeroed, pinned, at its
 * host address), on a stream of its own on the current device. Nothing ever waits for it. */
typedef struct glm53_copier glm53_copier;
int glm53_copier_create(uint64_t box_host, uint64_t record_bytes, glm53_copier** copier);
/* 1 once a copy failed: from then on nothing is looked ahead. */
int glm53_copier_failed(const glm53_copier* copier);
/* Host: wait up to `limit_ms` until all posted copies are done; 1 in `idle` if they are. */
int glm53_copier_drain(const glm53_copier* copier, int32_t limit_ms, int32_t* idle);
/* Ends the thread after its last copy. */
int glm53_copier_destroy(glm53_copier* copier);
/* Take in what the copier has done, without a step. */
int glm53_settle(const glm53_residency* state, void* stream);

#ifdef __cplusplus
}
#endif
