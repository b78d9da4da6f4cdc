// A strict accelerator for tests: two devices "strict:0" and "strict:1" on the CPU, with the manners of
// a GPU. What a GPU refuses it refuses: tensors of two devices in one operation, and memory beyond its
// own (STRICT_MEMORY_BYTES); with STRICT_FLOAT64=0 it has no float64, like MPS. Each device has a
// random generator of its own. Operations run by the CPU's kernels, so results are the CPU's to the
// bit.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

using at::Tensor;
using c10::Device, c10::DeviceIndex, c10::Stream;

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex DEVICES = 2;
thread_local DeviceIndex current = 0;

void set_current(DeviceIndex index) {
  TORCH_CHECK(0 <= index && index < DEVICES, "strict: invalid device ordinal ", int(index));
  current = index;
}

// ------------------------------------------------------------------ memory

size_t memory_bytes() {
  const char* said = std::getenv("STRICT_MEMORY_BYTES");
  return said ? std::strtoull(said, nullptr, 10) : size_t(1) << 30;
}

struct Block {
  void* data;
  size_t size;
  DeviceIndex device;
};

struct Memory final : c10::DeviceAllocator {
  std::mutex mutex;
  c10::CachingDeviceAllocator::DeviceStats stats[DEVICES];

  c10::DataPtr allocate(size_t size) override;
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    std::lock_guard lock(mutex);
    return stats[device];
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override {
    std::lock_guard lock(mutex);
    stats[device].reserved_bytes[0].reset_peak();
    stats[device].allocated_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    std::lock_guard lock(mutex);
    return {memory_bytes() - stats[device].reserved_bytes[0].current, memory_bytes()};
  }
};

Memory memory;

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard lock(memory.mutex);
    memory.stats[block->device].reserved_bytes[0].decrease(block->size);
    memory.stats[block->device].allocated_bytes[0].decrease(block->size);
  }
  std::free(block->data);
  delete block;
}

c10::DataPtr Memory::allocate(size_t size) {
  const Device device(KIND, current);
  if (!size)
    return {nullptr, device};
  {
    std::lock_guard lock(mutex);
    auto& reserved = stats[current].reserved_bytes[0];
    TORCH_CHECK_WITH(OutOfMemoryError, reserved.current + size <= memory_bytes(),
                     "strict out of memory: ", size, " bytes asked for on ", device, ", of ",
                     memory_bytes(), " bytes ", reserved.current, " are taken");
    reserved.increase(size);
    stats[current].allocated_bytes[0].increase(size);
  }
  auto* block = new Block{std::aligned_alloc(64, (size + 63) / 64 * 64), size, current};
  return {block->data, block, &release, device};
}

struct Pinned final : c10::Allocator {
  mutable std::mutex mutex;
  std::map<const char*, size_t> held;

  c10::DataPtr allocate(size_t size) override;
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
  bool holds(const void* data) const {
    std::lock_guard lock(mutex);
    auto after = held.upper_bound(static_cast<const char*>(data));
    return after != held.begin() && data < std::prev(after)->first + std::prev(after)->second;
  }
};

Pinned pinned;

c10::DataPtr Pinned::allocate(size_t size) {
  auto* data = std::aligned_alloc(64, (size + 64) / 64 * 64);
  std::lock_guard lock(mutex);
  held[static_cast<char*>(data)] = size;
  auto drop = [](void* data) {
    {
      std::lock_guard lock(pinned.mutex);
      pinned.held.erase(static_cast<char*>(data));
    }
    std::free(data);
  };
  return {data, data, drop, c10::DeviceType::CPU};
}

// ------------------------------------------------------------------ generators

struct StrictGenerator final : at::CPUGeneratorImpl {
  explicit StrictGenerator(DeviceIndex index) {
    device_ = Device(KIND, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  at::CPUGeneratorImpl* clone_impl() const override {
    auto* made = new StrictGenerator(device().index());
    made->set_state(*get_state());
    return made;
  }
};

at::Generator& default_generator(DeviceIndex index) {
  static std::vector<at::Generator> made = [] {
    std::vector<at::Generator> all;
    for (DeviceIndex each = 0; each < DEVICES; each++)
      all.push_back(at::make_generator<StrictGenerator>(each));
    return all;
  }();
  return made.at(index < 0 ? current : index);
}

// ------------------------------------------------------------------ device

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  Device getDevice() const override { return {KIND, current}; }
  void setDevice(Device device) const override { set_current(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    set_current(device.index());
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  Stream getStream(Device device) const override {
    return Stream(Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return DEVICES; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { set_current(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const auto before = current;
    set_current(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? current : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<StrictGenerator>(index < 0 ? current : index);
  }
  bool isPinnedPtr(const void* data) const override { return pinned.holds(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::DeviceGuard guard(storage.device());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), size);
  }
};

// ------------------------------------------------------------------ operations

at::ScalarType known(std::optional<at::ScalarType> asked) {
  static const char* said = std::getenv("STRICT_FLOAT64");
  static const bool has_float64 = !said || std::strcmp(said, "0");
  const auto dtype = c10::dtype_or_default(asked);
  TORCH_CHECK_TYPE(has_float64 || (dtype != at::kDouble && dtype != at::kComplexDouble),
                   "Cannot convert a strict Tensor to float64 dtype as strict has no float64");
  return dtype;
}

using OptionalDtype = std::optional<at::ScalarType>;
using OptionalLayout = std::optional<at::Layout>;
using OptionalDevice = std::optional<Device>;

Tensor empty(at::IntArrayRef size, OptionalDtype dtype, OptionalLayout, OptionalDevice device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(Device(KIND, current)));
  return at::detail::empty_generic(size, &memory,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), known(dtype),
                                   format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, OptionalDtype dtype,
                     OptionalLayout, OptionalDevice device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(Device(KIND, current)));
  return at::detail::empty_strided_generic(size, stride, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           known(dtype));
}

// Return a CPU tensor over the same memory.
Tensor seen_by_cpu(const Tensor& tensor) {
  if (tensor.is_cpu())
    return tensor;
  auto storage = tensor.storage();
  auto* data = static_cast<char*>(storage.mutable_data());
  auto bytes = at::from_blob(data, {int64_t(storage.nbytes())}, [storage](void*) {}, at::kByte);
  auto made = at::empty({0}, tensor.options().device(at::kCPU));
  return made.set_(bytes.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (to.numel())
    seen_by_cpu(to).copy_(seen_by_cpu(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes())
    to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const Tensor& resize_(const Tensor& tensor, at::IntArrayRef size,
                      std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(tensor.device());
  return at::native::resize_(tensor, size, format);
}

Tensor& set_storage(Tensor& tensor, at::Storage storage) {
  const int64_t count = storage.nbytes() / tensor.itemsize();
  return at::native::set_storage_cpu_(tensor, storage, 0, {count}, {});
}

Tensor& set_tensor(Tensor& tensor, const Tensor& from) {
  return at::native::set_storage_cpu_(tensor, from.storage(), from.storage_offset(), from.sizes(),
                                      from.strides());
}

Tensor& set_nothing(Tensor& tensor) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, memory.allocate(0), &memory, true);
  return at::native::set_storage_cpu_(tensor, storage, 0, {0}, {});
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  std::optional<Tensor> bias_there;
  if (bias && bias->defined())
    bias_there = bias->cpu();
  return at::convolution(input.cpu(), weight.cpu(), bias_there, stride, padding, dilation,
                         transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  const int64_t outputs = transposed ? weight.size(1) * groups : weight.size(0);
  auto [one, two, three] = at::convolution_backward(
      gradient.cpu(), input.cpu(), weight.cpu(), at::IntArrayRef({outputs}), stride, padding,
      dilation, transposed, output_padding, groups, mask);
  auto back = [&](const Tensor& made) { return made.defined() ? made.to(input.device()) : made; };
  return {back(one), back(two), back(three)};
}

// It changes the running statistics, which its schema does not say.
std::tuple<Tensor, Tensor, Tensor> batch_norm(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& mean, const std::optional<Tensor>& variance, bool training,
    double momentum, double eps) {
  auto seen = [](const std::optional<Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional<Tensor>(seen_by_cpu(*tensor)) : std::nullopt;
  };
  auto [one, two, three] =
      at::native_batch_norm(seen_by_cpu(input), seen(weight), seen(bias), seen(mean),
                            seen(variance), training, momentum, eps);
  return {one.to(input.device()), two.to(input.device()), three.to(input.device())};
}

// ------------------------------------------------------------------ everything else

// Raise as CUDA does where tensors are not on one device: numbers of no dimension, and indices, may
// be the CPU's.
void require_one_device(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::optional<Device> first;
  auto look = [&](const Tensor& tensor, bool index) {
    if (!tensor.defined() || (tensor.is_cpu() && (index || tensor.dim() == 0)))
      return;
    if (!first)
      first = tensor.device();
    TORCH_CHECK(*first == tensor.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *first, " and ", tensor.device(), "! (in ", op.schema().operator_name(), ")");
  };
  for (const auto& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor())
      look(value.toTensor(), false);
    else if (value.isTensorList())
      for (const auto& each : value.toTensorVector())
        look(each, false);
    else if (value.isOptionalTensorList())
      for (const auto& each : value.toOptionalTensorVector())
        if (each)
          look(*each, true);
  }
}

// Return the generator that an operation draws from, and leave the CPU's default in its place.
at::Generator taken_generator(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto count = op.schema().arguments().size();
  std::optional<at::Generator> said;
  auto index = current;
  for (auto& value : torch::jit::last(stack, count))
    if (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_cpu())
      index = value.toTensor().device().index();
  for (size_t place = stack.size() - count; place < stack.size(); place++)
    if (stack[place].isGenerator()) {
      said = stack[place].toGenerator();
      TORCH_CHECK(said->device() == Device(KIND, index), "Expected a generator of strict:",
                  int(index), ", got one of ", said->device());
      stack[place] = c10::IValue();
    }
  return said.value_or(default_generator(index));
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  require_one_device(op, *stack);
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) {
    at::native::cpu_fallback(op, stack, true);
    return;
  }
  static std::recursive_mutex one_at_a_time;
  std::lock_guard lock(one_at_a_time);
  auto ours = taken_generator(op, *stack);
  auto cpu = at::detail::getDefaultCPUGenerator();
  const auto before = cpu.get_state();
  cpu.set_state(ours.get_state());
  try {
    at::native::cpu_fallback(op, stack, true);
  } catch (...) {
    cpu.set_state(before);
    throw;
  }
  ours.set_state(cpu.get_state());
  cpu.set_state(before);
}

Tensor generator_state(int64_t device) { return default_generator(device).get_state(); }
void set_generator_state(int64_t device, const Tensor& state) {
  default_generator(device).set_state(state);
}

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
REGISTER_ALLOCATOR(KIND, &memory);
static const int hooked = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return 0;
}();

TORCH_LIBRARY(strict, library) {
  library.def("generator_state", &generator_state);
  library.def("set_generator_state", &set_generator_state);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("unfold", &at::native::unfold);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("resize_", &resize_);
  library.impl("set_", &set_nothing);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &at::native::_local_scalar_dense_cpu);
  library.impl("native_batch_norm", &batch_norm);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) { AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION) }
