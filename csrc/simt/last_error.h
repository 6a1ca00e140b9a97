// The calling OS thread's last CUDA error and the text that belongs to it.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace simt {

cudaError_t set_last_error(cudaError_t error, std::string text);

}  // namespace simt
