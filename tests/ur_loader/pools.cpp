// A SYCL program that allocates from pools, in the order of a queue.
#include <sycl/sycl.hpp>

#include <sycl/ext/oneapi/experimental/async_alloc/async_alloc.hpp>
#include <sycl/ext/oneapi/experimental/async_alloc/memory_pool.hpp>

#include <iostream>
#include <vector>

namespace experimental = sycl::ext::oneapi::experimental;

int main() {
  constexpr size_t count = 1024, nbytes = count * sizeof(int);
  sycl::queue queue{sycl::property::queue::in_order()};
  experimental::memory_pool pool{queue, sycl::usm::alloc::device};
  auto *own = static_cast<int *>(experimental::async_malloc_from_pool(queue, nbytes, pool));
  auto *other = static_cast<int *>(experimental::async_malloc(queue, sycl::usm::alloc::device, nbytes));
  const size_t used = pool.get_used_size_current();
  std::vector<int> out(count);
  queue.fill(own, 42, count);
  queue.copy(own, other, count);
  queue.copy(other, out.data(), count);
  experimental::async_free(queue, own);
  experimental::async_free(queue, other);
  queue.wait();
  pool.increase_threshold_to(nbytes);
  const bool good = used == nbytes && pool.get_used_size_current() == 0 && pool.get_threshold() == nbytes &&
                    out.back() == 42 && queue.get_device().has(sycl::aspect::ext_oneapi_async_memory_alloc);
  std::cout << (good ? "good" : "bad") << std::endl;
  return good ? 0 : 1;
}
