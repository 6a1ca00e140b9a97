// The part of the CUDA runtime's host interface that the launchers use, over host memory and a
// device that looks like an H200. Streams run everything at once.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "last_error.h"
#include "simt/shared_window.h"

namespace simt {
namespace {

constexpr int kNumSms = 132;
constexpr int kMaxThreadsPerSm = 2048;
constexpr int kMaxBlocksPerSm = 32;
constexpr size_t kSharedBytesPerSm = 228 * 1024;
constexpr size_t kReservedSharedBytes = 1024;  // per block

// Kept apart from the thread-local segment, which is shared memory here.
struct LastError {
  cudaError_t code = cudaSuccess;
  std::string text;
};
std::mutex mutex;
LastError last_error;       // until cudaGetLastError takes it
LastError described_error;  // for cudaGetErrorString, which comes later

}  // namespace

cudaError_t set_last_error(cudaError_t error, std::string text) {
  std::lock_guard<std::mutex> lock(mutex);
  last_error = {error, std::move(text)};
  described_error = last_error;
  return error;
}

}  // namespace simt

extern "C" {

cudaError_t cudaGetLastError() {
  std::lock_guard<std::mutex> lock(simt::mutex);
  const cudaError_t error = simt::last_error.code;
  simt::last_error = {};
  return error;
}

cudaError_t cudaPeekAtLastError() {
  std::lock_guard<std::mutex> lock(simt::mutex);
  return simt::last_error.code;
}

const char* cudaGetErrorString(cudaError_t error) {
  std::lock_guard<std::mutex> lock(simt::mutex);
  if (error == simt::described_error.code) return simt::described_error.text.c_str();
  return error == cudaSuccess ? "no error" : "an error of the CUDA runtime";
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaErrorUnknown";
  }
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess
                     : simt::set_last_error(cudaErrorInvalidDevice, "simt: there is one device");
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = simt::kNumSms;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(simt::kDefaultSharedBytes);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(simt::kMaxSharedBytes);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(simt::kSharedBytesPerSm);
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = simt::kMaxThreadsPerSm;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      return cudaSuccess;
    default:
      return simt::set_last_error(
          cudaErrorInvalidValue,
          "simt: device attribute " + std::to_string(attribute) + " is not modelled");
  }
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size,
                                                          size_t dynamic_bytes) {
  const int by_threads = simt::kMaxThreadsPerSm / ((block_size + 31) / 32 * 32);
  const int by_memory =
      static_cast<int>(simt::kSharedBytesPerSm / (dynamic_bytes + simt::kReservedSharedBytes));
  *blocks = std::min({by_threads, by_memory, simt::kMaxBlocksPerSm});
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t) {
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(to) + row * to_pitch,
                 static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

// All memory is the device's own.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = cudaMemoryTypeDevice;
  attributes->devicePointer = const_cast<void*>(pointer);
  attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

}  // extern "C"
