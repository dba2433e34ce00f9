// Fills of USM by patterns of several sizes, in one dimension and in two: no kernel of the program's is needed.
#include <sycl/sycl.hpp>

#include <algorithm>
#include <array>
#include <iostream>

struct Three {
    int a, b, c;
    bool operator==(const Three &other) const { return a == other.a && b == other.b && c == other.c; }
};

template <typename T> static bool filled(sycl::queue &queue, const T &value)
{
    constexpr size_t count = 1000;
    T *there = sycl::malloc_device<T>(count, queue), *here = sycl::malloc_host<T>(count, queue);
    queue.fill(there, value, count);
    queue.memcpy(here, there, count * sizeof(T)).wait();
    bool good = std::all_of(here, here + count, [&](const T &each) { return each == value; });
    queue.submit([&](sycl::handler &handler) { handler.fill(there, value, count / 2); }).wait();
    if (sizeof(T) == 1)
        queue.ext_oneapi_fill2d(there, 100, value, 50, 10).wait();
    sycl::free(there, queue);
    sycl::free(here, queue);
    return good;
}

int main()
{
    sycl::queue queue{sycl::property::queue::in_order{}};
    bool good = filled(queue, char(7)) && filled(queue, 42) && filled(queue, 2.5) &&
                filled(queue, std::array<long, 4>{1, 2, 3, 4});
    try {
        std::cout << "12 bytes: " << (filled(queue, Three{1, 2, 3}) ? "filled" : "WRONG") << std::endl;
    } catch (const sycl::exception &error) {
        std::cout << "12 bytes: " << error.what() << std::endl;
    }
    std::cout << queue.get_device().get_info<sycl::info::device::name>() << ": " << (good ? "good" : "WRONG") << std::endl;
    return !good;
}
