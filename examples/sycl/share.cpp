// A SYCL program, without kernels, that shares device memory, physical memory and an event with another process.
//
//   share FOLDER COMMAND…   exports all three into FOLDER, runs COMMAND, and checks what it wrote
//   share FOLDER            is such a command: opens what FOLDER names, checks it, and writes
//
// SHARE_ROUNDS=N exports N times, each time anew, whatever becomes of the command; the last time must be good.
//
// peer.py does the same in Python. docs/cpp.md says how to build and run them.
#include <sycl/sycl.hpp>
#include <sycl/ext/oneapi/experimental/ipc_event.hpp>
#include <sycl/ext/oneapi/experimental/ipc_memory.hpp>
#include <sycl/ext/oneapi/experimental/ipc_physical_memory.hpp>
#include <sycl/ext/oneapi/experimental/reusable_events.hpp>
#include <sycl/ext/oneapi/virtual_mem/virtual_mem.hpp>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace ex = sycl::ext::oneapi::experimental;
namespace ipc = ex::ipc;

constexpr size_t count = 1024;

static void save(const std::string &file, const ipc::handle &handle)
{
    auto data = handle.data();
    std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char *>(data.data()), data.size());
}

static ipc::handle_data_t load(const std::string &file)
{
    std::ifstream stream(file, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(stream)), {});
    auto begin = reinterpret_cast<const std::byte *>(text.data());
    return {begin, begin + text.size()};
}

// A range of addresses with all of a physical memory mapped.
struct Mapped {
    Mapped(ex::physical_mem &memory, const sycl::context &context)
        : context(context), nbytes(memory.size()), address(ex::reserve_virtual_mem(nbytes, context))
    {
        memory.map(address, nbytes, ex::address_access_mode::read_write);
    }
    ~Mapped()
    {
        ex::unmap(reinterpret_cast<void *>(address), nbytes, context);
        ex::free_virtual_mem(address, nbytes, context);
    }
    int *data() const { return reinterpret_cast<int *>(address); }

    sycl::context context;
    size_t nbytes;
    uintptr_t address;
};

// Whether all numbers at `data`, on the device, are `value`.
static bool holds(sycl::queue &queue, const int *data, int value)
{
    int *copy = sycl::malloc_host<int>(count, queue);
    queue.memcpy(copy, data, count * sizeof(int)).wait();
    bool same = std::all_of(copy, copy + count, [=](int each) { return each == value; });
    sycl::free(copy, queue);
    return same;
}

static bool exporter(sycl::queue &queue, const std::string &folder, const std::string &command)
{
    auto device = queue.get_device();
    auto context = queue.get_context();
    size_t granule = ex::get_mem_granularity(device, context, ex::granularity_mode::minimum);

    int *memory = sycl::malloc_device<int>(count, queue);
    ex::physical_mem physical(device, context, granule, ex::properties{ex::enable_ipc{true}});
    Mapped mapped(physical, context);
    auto event = ex::make_event(context, ex::properties{ex::enable_ipc{true}});

    auto memory_handle = ipc::memory::get(memory, context);
    auto physical_handle = ipc::physical_memory::get(physical);
    auto event_handle = ipc::event::get(event);
    save(folder + "/memory", memory_handle);
    save(folder + "/physical", physical_handle);
    save(folder + "/event", event_handle);

    queue.fill(memory, 42, count);
    queue.fill(mapped.data(), 99, count);
    ex::enqueue_signal_event(queue, event); // the other's queue waits for it, its host need not
    bool good = std::system(command.c_str()) == 0;

    event.wait(); // what the other signalled last; this queue would drop the wait, as it signalled the event itself
    good = good && holds(queue, memory, 43) && holds(queue, mapped.data(), 100);

    ipc::memory::put(memory_handle, context);
    ipc::physical_memory::put(physical_handle, context);
    ipc::event::put(event_handle, context);
    sycl::free(memory, queue);
    return good;
}

static bool importer(sycl::queue &queue, const std::string &folder)
{
    auto device = queue.get_device();
    auto context = queue.get_context();
    int *memory = static_cast<int *>(ipc::memory::open(load(folder + "/memory"), context, device));
    auto physical = ipc::physical_memory::open(load(folder + "/physical"), context, device);
    auto event = ipc::event::open(load(folder + "/event"), context);
    Mapped mapped(physical, context);

    ex::enqueue_wait_event(queue, event);
    bool good = holds(queue, memory, 42) && holds(queue, mapped.data(), 99);
    queue.fill(memory, 43, count);
    queue.fill(mapped.data(), 100, count);
    ex::enqueue_signal_event(queue, event);
    queue.wait();
    ipc::memory::close(memory, context);
    return good;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        std::cerr << "usage: share FOLDER [COMMAND…]\n";
        return 2;
    }
    std::string folder = argv[1], command;
    for (int i = 2; i < argc; i++)
        command += std::string("'") + argv[i] + "' ";
    const char *text = std::getenv("SHARE_ROUNDS");
    bool exports = !command.empty(), good = false;
    for (int round = exports && text ? std::atoi(text) : 1; round > 0; round--)
        try {
            sycl::queue queue{sycl::property::queue::in_order{}};
            good = exports ? exporter(queue, folder, command) : importer(queue, folder);
            std::cout << "C++ " << (exports ? "exported" : "imported") << " on "
                      << queue.get_device().get_info<sycl::info::device::name>() << ": " << (good ? "good" : "WRONG")
                      << std::endl;
        } catch (const sycl::exception &error) {
            good = false;
            std::cout << "C++: " << error.what() << std::endl;
        }
    return good ? 0 : 1;
}
