/* The contract of libglm53_cuda.so. Every pointer is a device address unless it says host. Nothing
 * here allocates or synchronises, the copier's life apart; the stream is a cudaStream_t. 0 is success, everything
 * else has its text in glm53_cuda_last_error(). */
#pragma once
#include <stdint.h>

#define GLM53_CUDA_ABI_VERSION 8
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
    uint32_t* copied;       /* [1] sequence of the last look-ahead whose copies are done */
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
                           copies go to the copy box, nothing is decided while the last ones are under way,
                           and `layer` is at least 1 */
    int32_t num_protected; /* with lookahead */
    const int64_t* picks; /* [num_picks] expert ids */
    const void* x;        /* fp16 [rows, hidden] */
    void* weights;        /* fp16 [num_picks]; without runs, picks that go to the CPU are set to 0 */
    uint64_t mailbox;     /* device alias of the mailbox (core/mailbox.h) */
    const int64_t* protected_picks; /* [num_protected] of layer - 1: its slots are in use and stay */
    void* runs; /* a RunList (core/expert_runs.h), or null. With it the picks that the GPU computes are listed there
                   for glm53_experts_run, and the weights are only read: stock's kernels must be given zeros */
} glm53_step;

/* The routed experts of one layer, computed by glm53_experts_run. Tables are exllamav3's, [experts] each. */
typedef struct {
    uint32_t size; /* sizeof(glm53_experts) */
    int32_t hidden, intermediate;
    int32_t bits, down_bits; /* of gate and up, of down */
    int32_t processors;      /* of the card */
    float act_limit;         /* the SwiGLU clamp, 0 for none */
    const uint64_t *gate_trellis, *gate_suh, *gate_svh;
    const uint64_t *up_trellis, *up_suh, *up_svh;
    const uint64_t *down_trellis, *down_suh, *down_svh;
    /* Scratch, shared by all layers. A step has at most 64 picks. */
    void* act;       /* fp16 [64][intermediate] */
    float* partial;  /* [8 * 64 * max(2 * intermediate, hidden)] */
    float* y;        /* [64][hidden]: of each pick that the GPU computes, without its weight */
    int32_t* joined; /* [64 * max(intermediate, hidden) / 128], zero */
} glm53_experts;

/* Streams (cudaStream_t) and events (cudaEvent_t, recorded once before) of a layer whose experts we compute. */
typedef struct {
    uint32_t size;   /* sizeof(glm53_fork) */
    int32_t blocks;  /* thread blocks that copy */
    int32_t repeats; /* 1; more make the link as much narrower (tests) */
    int32_t reserved;
    void *side, *copies;        /* decision and kernels; copies */
    void *routed, *decided;     /* recorded by us: the inputs are there; by a look-ahead: its decision is made */
    void* forked;               /* between the two streams: the decision is made */
    void *copied, *computed;    /* recorded by us: what is missing is there; the GPU's experts are computed */
    void *began, *ended, *last; /* timed events around the copies and behind the last kernel, or null */
} glm53_fork;

/* Stream and events of a look-ahead. */
typedef struct {
    uint32_t size; /* sizeof(glm53_ahead) */
    int32_t rows;  /* of the step's x */
    void* stream;
    void *routed, *copied; /* waited for: the layer's inputs are there; its own copies are */
    void* decided;         /* recorded */
} glm53_ahead;

/* A layer's router, for glm53_guess. */
typedef struct {
    uint32_t size; /* sizeof(glm53_router) */
    int32_t experts, hidden; /* at most 1024; a multiple of 8 */
    int32_t picks;           /* how many to name, at most 16 */
    const void* gate;        /* fp16, 16-byte aligned. Of its strides, in elements, one is 1 and the other a multiple
                                of 8; where gate_expert_stride is 1, so is `experts` */
    int64_t gate_expert_stride, gate_input_stride;
    const void* bias; /* fp16 [experts], added to the scores, or null */
    /* Scratch and answer. Layers whose guesses run one after the other may share them. */
    float* scores;   /* [experts] */
    int32_t* joined; /* [1] zero */
    int64_t* out;    /* [picks] ids, best first: distinct and in range whatever the scores are */
} glm53_router;

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
/* Once per shape: make the kernels of such a layer ready. */
int glm53_experts_prepare(const glm53_experts* model);
/* Compute the runs of one place (core/expert_runs.h: 0 in their slots before the step, 1 admitted by it, which
 * glm53_gather must have moved) of a step with `runs`, into y. */
int glm53_experts_run(const glm53_experts* model, const glm53_step* step, int32_t place, void* stream);
/* final float [rows, hidden] += the weighted y of the step's picks, and the CPU tier's sum, if it posted any. */
int glm53_experts_combine(const glm53_residency* state, const glm53_experts* model, const glm53_step* step,
                          float* final, void* stream);
/* Once the inputs on `stream` are there: decide a step with `runs`, move what it admits, and compute, beside `stream`. */
int glm53_layer_begin(const glm53_residency* state, const glm53_experts* model, const glm53_step* step,
                      const glm53_fork* fork, void* stream);
/* Then wait for that and for the CPU tier, and add everything to final float [rows, hidden]. */
int glm53_layer_end(const glm53_residency* state, const glm53_experts* model, const glm53_step* step,
                    const glm53_fork* fork, float* final, void* stream);
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

/* The experts with the best sigmoid(logit) + bias of any row of x, fp16 [rows, hidden] with 1 to 8 rows and 16-byte
 * aligned; of equals the lower id. A NaN loses to every number. One launch. */
int glm53_guess(const glm53_router* router, const void* x, int32_t rows, void* stream);
/* Look-ahead: guess with `router` (may be null: then the step's picks are a guess already) from the step's x, decide
 * `step` (its lookahead is 1), record `decided`. Without picks of its own the step takes the router's. The next
 * cache_step comes after `decided`; it waits for those of the copies that it picks. */
int glm53_look_ahead(const glm53_residency* state, const glm53_router* router, const glm53_step* step,
                     const glm53_ahead* ahead);
/* Look-ahead: a thread that copies what look-ahead steps post into the copy box (zeroed, pinned, at its host
 * address), on a stream of its own on the current device, and has the card write their sequence to *done. */
typedef struct glm53_copier glm53_copier;
int glm53_copier_create(uint64_t box_host, uint64_t record_bytes, uint32_t* done, glm53_copier** copier);
/* 1 once a copy failed: those posted with it never end. */
int glm53_copier_failed(const glm53_copier* copier);
/* Host: wait until all that is posted is copied; 1 in `idle` if the thread took it up within `limit_ms`. */
int glm53_copier_drain(const glm53_copier* copier, int32_t limit_ms, int32_t* idle);
/* Ends the thread after its last copy. */
int glm53_copier_destroy(glm53_copier* copier);
/* Take in the looked-ahead copies that are done, without a step. */
int glm53_settle(const glm53_residency* state, void* stream);

#ifdef __cplusplus
}
#endif
