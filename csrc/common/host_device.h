// Marks functions that host code and CUDA kernels share.
#pragma once

#ifdef __CUDACC__
#define PAGEDATTN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PAGEDATTN_HOST_DEVICE inline
#endif
