// Takes the place of the CUDA toolkit's cuda_runtime.h when kernels are compiled by a C++ compiler
// to run on the CPU. Types and host functions are the toolkit's; what nvcc builds in is simt/*.h.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <simt/atomics.h>
#include <simt/block.h>
#include <simt/intrinsics.h>
#include <simt/launch.h>
#include <simt/warp.h>

// A block's shared memory is its OS thread's copy: see simt/shared_window.h.
#undef __shared__
#define __shared__ thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

constexpr int warpSize = 32;
