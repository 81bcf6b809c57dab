// SPDX-License-Identifier: Apache-2.0
// A device plugin of TensorFlow that calls itself a GPU but is the host. TensorFlow loads it if
// TF_PLUGGABLE_DEVICE_LIBRARY_PATH names it. With the plugin and TF_EMBED_EMULATE_GPU=1, tables are
// on "/GPU:0" on any machine. TF_EMBED_EMULATED_GPUS=2 makes two such devices; the default is one.
// Tensors, ops and their arrays are placed, copied and owned as with a GPU. Calls finish their work
// before they return, so streams and events do nothing.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace {

constexpr int64_t kMemory = int64_t{16} << 30;
constexpr size_t kAlignment = 256;

void SayOk(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void* NewMemory(uint64_t size) {
  return std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
}

// Something to point at.
template <typename Handle>
Handle SomeHandle() {
  static char something;
  return reinterpret_cast<Handle>(&something);
}

void SetMemoryFunctions(SP_StreamExecutor* executor) {
  executor->allocate = [](const SP_Device*, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
    memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
    memory->opaque = NewMemory(size);
    memory->size = size;
  };
  executor->deallocate = [](const SP_Device*, SP_DeviceMemoryBase* memory) {
    std::free(memory->opaque);
    memory->opaque = nullptr;
    memory->size = 0;
  };
  executor->host_memory_allocate = [](const SP_Device*, uint64_t size) { return NewMemory(size); };
  executor->host_memory_deallocate = [](const SP_Device*, void* memory) { std::free(memory); };
  executor->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return 0; };
  executor->device_memory_usage = [](const SP_Device*, int64_t* free, int64_t* total) -> TF_Bool {
    *free = *total = kMemory;
    return 1;
  };
}

void SetStreamFunctions(SP_StreamExecutor* executor) {
  executor->create_stream = [](const SP_Device*, SP_Stream* stream, TF_Status* status) {
    *stream = SomeHandle<SP_Stream>();
    SayOk(status);
  };
  executor->destroy_stream = [](const SP_Device*, SP_Stream) {};
  executor->create_stream_dependency = [](const SP_Device*, SP_Stream, SP_Stream,
                                          TF_Status* status) { SayOk(status); };
  executor->get_stream_status = [](const SP_Device*, SP_Stream, TF_Status* status) {
    SayOk(status);
  };
  executor->block_host_until_done = [](const SP_Device*, SP_Stream, TF_Status* status) {
    SayOk(status);
  };
  executor->synchronize_all_activity = [](const SP_Device*, TF_Status* status) { SayOk(status); };
  executor->host_callback = [](const SP_Device*, SP_Stream, SE_StatusCallbackFn call,
                               void* argument) -> TF_Bool {
    TF_Status* const status = TF_NewStatus();
    call(argument, status);
    TF_DeleteStatus(status);
    return 1;
  };
}

void SetEventFunctions(SP_StreamExecutor* executor) {
  executor->create_event = [](const SP_Device*, SP_Event* event, TF_Status* status) {
    *event = SomeHandle<SP_Event>();
    SayOk(status);
  };
  executor->destroy_event = [](const SP_Device*, SP_Event) {};
  executor->get_event_status = [](const SP_Device*, SP_Event) { return SE_EVENT_COMPLETE; };
  executor->record_event = [](const SP_Device*, SP_Stream, SP_Event, TF_Status* status) {
    SayOk(status);
  };
  executor->wait_for_event = [](const SP_Device* const, SP_Stream, SP_Event,
                                TF_Status* const status) { SayOk(status); };
  executor->block_host_for_event = [](const SP_Device*, SP_Event, TF_Status* status) {
    SayOk(status);
  };
  executor->create_timer = [](const SP_Device*, SP_Timer* timer, TF_Status* status) {
    *timer = SomeHandle<SP_Timer>();
    SayOk(status);
  };
  executor->destroy_timer = [](const SP_Device*, SP_Timer) {};
  executor->start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status* status) {
    SayOk(status);
  };
  executor->stop_timer = executor->start_timer;
}

void SetCopyFunctions(SP_StreamExecutor* executor) {
  executor->memcpy_dtoh = [](const SP_Device*, SP_Stream, void* to, const SP_DeviceMemoryBase* from,
                             uint64_t size, TF_Status* status) {
    std::memcpy(to, from->opaque, size);
    SayOk(status);
  };
  executor->memcpy_htod = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to, const void* from,
                             uint64_t size, TF_Status* status) {
    std::memcpy(to->opaque, from, size);
    SayOk(status);
  };
  executor->memcpy_dtod = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to,
                             const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
    std::memmove(to->opaque, from->opaque, size);
    SayOk(status);
  };
  executor->sync_memcpy_dtoh = [](const SP_Device*, void* to, const SP_DeviceMemoryBase* from,
                                  uint64_t size, TF_Status* status) {
    std::memcpy(to, from->opaque, size);
    SayOk(status);
  };
  executor->sync_memcpy_htod = [](const SP_Device*, SP_DeviceMemoryBase* to, const void* from,
                                  uint64_t size, TF_Status* status) {
    std::memcpy(to->opaque, from, size);
    SayOk(status);
  };
  executor->sync_memcpy_dtod = [](const SP_Device*, SP_DeviceMemoryBase* to,
                                  const SP_DeviceMemoryBase* from, uint64_t size,
                                  TF_Status* status) {
    std::memmove(to->opaque, from->opaque, size);
    SayOk(status);
  };
  executor->mem_zero = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint64_t size,
                          TF_Status* status) {
    std::memset(memory->opaque, 0, size);
    SayOk(status);
  };
  executor->memset = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint8_t byte,
                        uint64_t size, TF_Status* status) {
    std::memset(memory->opaque, byte, size);
    SayOk(status);
  };
  executor->memset32 = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory,
                          uint32_t pattern, uint64_t size, TF_Status* status) {
    for (uint64_t i = 0; i + sizeof(pattern) <= size; i += sizeof(pattern)) {
      std::memcpy(static_cast<char*>(memory->opaque) + i, &pattern, sizeof(pattern));
    }
    SayOk(status);
  };
}

void SetPlatformFunctions(SP_PlatformFns* platform) {
  platform->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  platform->get_device_count = [](const SP_Platform*, int* count, TF_Status* status) {
    const char* const text = std::getenv("TF_EMBED_EMULATED_GPUS");
    *count = text != nullptr ? std::atoi(text) : 1;
    SayOk(status);
  };
  platform->create_device = [](const SP_Platform*, SE_CreateDeviceParams* params,
                               TF_Status* status) {
    params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    params->device->ordinal = params->ordinal;
    params->device->hardware_name = "the host";
    SayOk(status);
  };
  platform->destroy_device = [](const SP_Platform*, SP_Device*) {};
  platform->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* params,
                                   TF_Status* status) {
    params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
    SayOk(status);
  };
  platform->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  platform->create_stream_executor = [](const SP_Platform*, SE_CreateStreamExecutorParams* params,
                                        TF_Status* status) {
    SP_StreamExecutor* const executor = params->stream_executor;
    executor->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
    SetMemoryFunctions(executor);
    SetStreamFunctions(executor);
    SetEventFunctions(executor);
    SetCopyFunctions(executor);
    SayOk(status);
  };
  platform->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  platform->create_timer_fns = [](const SP_Platform*, SP_TimerFns* timer, TF_Status* status) {
    timer->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    timer->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
    SayOk(status);
  };
  platform->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
}

}  // namespace

extern "C" void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->struct_size = SE_PLATFORM_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->major_version = SE_MAJOR;
  params->minor_version = SE_MINOR;
  params->patch_version = SE_PATCH;
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "TF_EMBED_HOST";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = 1;
  params->platform->force_memory_growth = 1;
  SetPlatformFunctions(params->platform_fns);
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  SayOk(status);
}
