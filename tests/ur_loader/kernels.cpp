// Kernels in a program that g++ built, on this package's devices: SYCL has an exception for each way that asks an adapter.
#include <sycl/sycl.hpp>

#include <iostream>
#include <string>

namespace experimental = sycl::ext::oneapi::experimental;

template <typename Attempt> bool refused(const char *what, Attempt attempt) {
  try {
    attempt();
  } catch (const sycl::exception &error) {
    std::cout << what << ": " << error.what() << std::endl;
    return true;
  }
  std::cout << what << " was not refused" << std::endl;
  return false;
}

int main() {
  sycl::queue queue;
  const auto context = queue.get_context();
  bool good = true;
  for (auto language : {experimental::source_language::opencl, experimental::source_language::sycl})
    good &= refused("source", [&] {
      auto source = experimental::create_kernel_bundle_from_source(context, language, std::string("kernel void k() {}"));
      experimental::build(source);
    });
  good &= refused("SPIR-V", [&] {
    const std::vector<std::byte> spirv(20);
    auto source = experimental::create_kernel_bundle_from_source(context, experimental::source_language::spirv, spirv);
    auto kernel = experimental::build(source).ext_oneapi_get_kernel("k");
    queue.submit([&](sycl::handler &handler) { handler.single_task(kernel); }).wait();
  });
  int *memory = sycl::malloc_shared<int>(4, queue);
  queue.fill(memory, 42, 4).wait(); // and goes on
  good &= memory[3] == 42;
  sycl::free(memory, queue);
  std::cout << (good ? "good" : "bad") << std::endl;
  return good ? 0 : 1;
}
