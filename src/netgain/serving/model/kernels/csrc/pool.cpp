#include "pool.hpp"

#include <chrono>

namespace {

// Long enough to stay awake between the operations of one step, short enough to leave the core to others when idle.
constexpr auto SPIN = std::chrono::microseconds(60);

constexpr uint64_t CLOSED = 0x7fffffff;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this] { serve(); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(sleep_);
        stop_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::run(Call call, const void* context, int pieces) {
    std::lock_guard<std::mutex> lock(one_job_);
    uint32_t job = uint32_t(ticket_ >> 32);
    ticket_ = uint64_t(job) << 32 | CLOSED;  // a late worker's claim on the old job must fail while the fields change
    call_ = call;
    context_ = context;
    pieces_ = pieces;
    done_ = 0;
    ticket_ = uint64_t(++job) << 32;
    if (sleepers_ > 0) {
        { std::lock_guard<std::mutex> sleeping(sleep_); }
        wake_.notify_all();
    }
    while (take(job)) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) < pieces; spins++) {
        if (spins < 4096)
            pause();
        else
            std::this_thread::yield();
    }
}

bool Pool::take(uint32_t job) {
    uint64_t ticket = ticket_;
    for (;;) {
        Call call = call_;
        const void* context = context_;
        int piece = int(uint32_t(ticket));
        if (uint32_t(ticket >> 32) != job || piece >= pieces_) return false;
        if (ticket_.compare_exchange_weak(ticket, ticket + 1)) {
            call(context, piece);
            done_.fetch_add(1, std::memory_order_release);
            return true;
        }
    }
}

void Pool::serve() {
    uint32_t seen = 0;
    while (!stop_) {
        auto until = std::chrono::steady_clock::now() + SPIN;
        uint32_t job;
        for (int spins = 0; (job = uint32_t(ticket_ >> 32)) == seen; spins++) {
            pause();
            if (spins % 32 == 31 && std::chrono::steady_clock::now() > until) {
                std::unique_lock<std::mutex> lock(sleep_);
                sleepers_++;
                wake_.wait(lock, [&] { return stop_ || uint32_t(ticket_ >> 32) != seen; });
                sleepers_--;
                if (stop_) return;
            }
        }
        while (take(job)) {
        }
        seen = job;
    }
}
