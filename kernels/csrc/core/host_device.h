// One source for g++ and nvcc: functions marked GLM53_HD run on the host and on the device.
#pragma once

#ifdef __CUDACC__
#define GLM53_HD __host__ __device__ inline
#else
#define GLM53_HD inline
#endif
