// What the machine can do at most, without any library: memory reads and the latency of messages. A program of its own, built
// by build.py and started by `netgain doctor`: machine_probe BYTES THREADS REPEATS. Prints one JSON object per line and figure.

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int MESSAGES = 2000, WAKE_UPS = 500;
constexpr size_t MESSAGE_BYTES = 64;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

uint64_t sum(const uint64_t* data, size_t count) {
    uint64_t lanes[32] = {};  // independent sums, so that loads are what takes time
    for (size_t i = 0; i + 32 <= count; i += 32)
        for (int lane = 0; lane < 32; lane++) lanes[lane] += data[i + lane];
    uint64_t total = 0;
    for (uint64_t lane : lanes) total += lane;
    return total;
}

// Best seconds of `repeats` reads of the whole array by `threads` threads that start together.
double read_seconds(const uint64_t* data, size_t count, int threads, int repeats) {
    std::atomic<int> round{0}, done{0};
    std::atomic<uint64_t> total{0};
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; t++)
        workers.emplace_back([&, t] {
            size_t begin = count / threads * t, end = t + 1 == threads ? count : count / threads * (t + 1);
            for (int r = 1; r <= repeats; r++) {
                while (round.load(std::memory_order_acquire) < r) std::this_thread::yield();
                total += sum(data + begin, end - begin);
                done.fetch_add(1, std::memory_order_release);
            }
        });
    double best = 1e30;
    for (int r = 1; r <= repeats; r++) {
        done = 0;
        auto start = Clock::now();
        round.store(r, std::memory_order_release);
        while (done.load(std::memory_order_acquire) < threads) std::this_thread::sleep_for(std::chrono::microseconds(50));
        best = std::min(best, since(start));
    }
    for (auto& worker : workers) worker.join();
    static volatile uint64_t sink;
    sink = total;
    (void)sink;
    return best;
}

void print_latency(const char* name, std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    printf("{\"%s\": {\"median_s\": %.9f, \"p99_s\": %.9f, \"repeats\": %zu}}\n", name, seconds[seconds.size() / 2],
           seconds[seconds.size() * 99 / 100], seconds.size());
    fflush(stdout);
}

bool move_all(bool out, int socket, char* data) {
    for (size_t at = 0; at < MESSAGE_BYTES;) {
        ssize_t moved = out ? write(socket, data + at, MESSAGE_BYTES - at) : read(socket, data + at, MESSAGE_BYTES - at);
        if (moved <= 0) return false;
        at += size_t(moved);
    }
    return true;
}

// A small message to another process over a Unix socket and back.
void round_trips() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return;
    char data[MESSAGE_BYTES] = {};
    pid_t child = fork();
    if (child < 0) return;
    if (child == 0) {
        close(ends[0]);
        while (move_all(false, ends[1], data) && move_all(true, ends[1], data)) {
        }
        _exit(0);
    }
    close(ends[1]);
    std::vector<double> seconds;
    for (int i = 0; i < MESSAGES; i++) {
        auto start = Clock::now();
        if (!move_all(true, ends[0], data) || !move_all(false, ends[0], data)) break;
        if (i >= MESSAGES / 10) seconds.push_back(since(start));
    }
    close(ends[0]);
    waitpid(child, nullptr, 0);
    if (!seconds.empty()) print_latency("round_trip", seconds);
}

// From the notification of a thread that sleeps to its first instruction.
void wake_ups() {
    std::mutex lock;
    std::condition_variable wake;
    Clock::time_point sent;
    int turn = 0;
    std::atomic<int> seen{0};
    std::vector<double> seconds;
    std::thread sleeper([&] {
        for (int i = 1; i <= WAKE_UPS; i++) {
            std::unique_lock<std::mutex> held(lock);
            wake.wait(held, [&] { return turn == i; });
            seconds.push_back(since(sent));
            seen = i;
        }
    });
    for (int i = 1; i <= WAKE_UPS; i++) {
        std::this_thread::sleep_for(std::chrono::microseconds(300));  // it sleeps by now
        {
            std::lock_guard<std::mutex> held(lock);
            turn = i;
            sent = Clock::now();
        }
        wake.notify_one();
        while (seen < i) std::this_thread::yield();
    }
    sleeper.join();
    print_latency("wake_up", seconds);
}

}  // namespace

int main(int given, char** arguments) {
    if (given != 4) return 2;
    size_t bytes = strtoull(arguments[1], nullptr, 10) / 4096 * 4096;
    int threads = atoi(arguments[2]), repeats = atoi(arguments[3]);
    if (bytes == 0 || threads < 1 || repeats < 1) return 2;
    round_trips();  // first, while there is little to fork
    wake_ups();
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("no memory for reading");
        return 1;
    }
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    uint64_t* data = static_cast<uint64_t*>(memory);
    size_t count = bytes / sizeof(uint64_t);
    for (size_t i = 0; i < count; i++) data[i] = i;
    for (int number : {1, threads}) {
        printf("{\"read\": {\"threads\": %d, \"bytes_per_s\": %.0f, \"array_bytes\": %zu, \"repeats\": %d}}\n", number,
               double(bytes) / read_seconds(data, count, number, repeats), bytes, repeats);
        fflush(stdout);
        if (threads == 1) break;
    }
    return 0;
}
