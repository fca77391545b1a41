/* A CUDA driver for tests: host memory stands for the card, the clock for its events.
 * FAKE_PIN_BLOCKS limits how many pinned blocks may be held at once. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long device_pointer;
static int pinned_blocks;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &pinned_blocks; return device; }
int cuCtxSetCurrent(void *context) { return context == &pinned_blocks ? 0 : 201; }

int cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
  const char *limit = getenv("FAKE_PIN_BLOCKS");
  if (flags != 0 || (limit && pinned_blocks >= atoi(limit))) return 2;
  *memory = malloc(size);
  pinned_blocks++;
  return 0;
}
int cuMemFreeHost(void *memory) { free(memory); pinned_blocks--; return 0; }
int cuMemAlloc_v2(device_pointer *memory, size_t size) { *memory = (device_pointer)malloc(size); return 0; }
int cuMemFree_v2(device_pointer memory) { free((void *)memory); return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = malloc(1); return (int)flags; }
int cuEventCreate(void **event, unsigned flags) { *event = calloc(1, sizeof(double)); return (int)flags; }
int cuEventRecord(void *event, void *stream) { (void)stream; *(double *)event = now_ms(); return 0; }
int cuEventSynchronize(void *event) { (void)event; return 0; }
int cuEventElapsedTime(float *ms, void *begin, void *end) {
  *ms = (float)(*(double *)end - *(double *)begin);
  return 0;
}
int cuMemcpyHtoDAsync_v2(device_pointer to, const void *from, size_t size, void *stream) {
  (void)stream;
  memcpy((void *)to, from, size);
  return 0;
}
