// waits FOLDER COMMAND…: which waits for an event libsycl drops in the queue that signalled the event last. COMMAND signals it
// once more, and does not complete that until it reads a line.
#include <sycl/sycl.hpp>
#include <sycl/ext/oneapi/experimental/ipc_event.hpp>
#include <sycl/ext/oneapi/experimental/reusable_events.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <string>
#include <unistd.h>
#include <utility>

namespace ex = sycl::ext::oneapi::experimental;

static bool complete(const sycl::event &event)
{
    return event.get_info<sycl::info::event::command_execution_status>() == sycl::info::event_command_status::complete;
}

static bool sleeps(pid_t thread)
{
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    return text.compare(text.rfind(')'), 3, ") S") == 0;
}

int main(int argc, char **argv)
{
    auto in_order = sycl::property::queue::in_order{};
    sycl::queue queue{in_order}, other{queue.get_context(), queue.get_device(), in_order};
    auto context = queue.get_context();
    std::string folder = argv[1], command;
    for (int i = 2; i < argc; i++)
        command += std::string("'") + argv[i] + "' ";
    const std::pair<const char *, std::function<void(sycl::event &)>> ways[] = {
        {"enqueue_wait_event", [&](sycl::event &event) { ex::enqueue_wait_event(queue, event); }},
        {"enqueue_wait_events", [&](sycl::event &event) { ex::enqueue_wait_events(queue, {event}); }},
        {"ext_oneapi_submit_barrier", [&](sycl::event &event) { queue.ext_oneapi_submit_barrier({event}); }},
        {"wait of another queue", [&](sycl::event &event) {
             queue.ext_oneapi_submit_barrier({other.ext_oneapi_submit_barrier({event})});
         }},
        {"event opened again", [&](sycl::event &event) {
             auto handle = ex::ipc::event::get(event);
             auto opened = ex::ipc::event::open(handle.data(), context);
             ex::enqueue_wait_event(queue, opened);
         }},
        {"event::wait", [&](sycl::event &event) { event.wait(); }},
    };
    for (auto &[name, way] : ways) {
        auto event = ex::make_event(context, ex::properties{ex::enable_ipc{true}});
        auto handle = ex::ipc::event::get(event);
        auto data = handle.data();
        std::ofstream(folder + "/event", std::ios::binary).write(reinterpret_cast<const char *>(data.data()), data.size());
        ex::enqueue_signal_event(queue, event);
        queue.wait();
        std::string go = folder + "/go";
        std::remove(go.c_str());
        FILE *peer = popen(command.c_str(), "r");
        char line[64];
        if (!fgets(line, sizeof line, peer) || complete(event))
            return 1;
        std::promise<pid_t> thread;
        auto waits = std::async(std::launch::async, [&, way = way] {
            thread.set_value(gettid());
            way(event);
            queue.wait();
            return complete(event);
        });
        pid_t id = thread.get_future().get();
        // Sleeping may mean that it is about to wait: only a return says that it did not.
        for (int rounds = 0; rounds < 50 && waits.wait_for(std::chrono::milliseconds(2)) == std::future_status::timeout;)
            rounds = sleeps(id) ? rounds + 1 : 0;
        std::ofstream(go) << "go";
        std::cout << name << (waits.get() ? ": waited" : ": did not wait") << std::endl;
        if (pclose(peer))
            return 1;
    }
}
