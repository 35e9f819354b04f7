// A few threads that share out the pieces of one job at a time. Which thread computes a piece never matters to its bits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

class Pool {
  public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;

    // Calls body(piece) for every piece in 0..pieces-1 and returns when all are done. The caller works too, and needs
    // no other thread to make progress.
    template <class Body>
    void each(int pieces, const Body& body) {
        if (pieces <= 1 || workers_.empty()) {
            for (int i = 0; i < pieces; i++) body(i);
            return;
        }
        run([](const void* context, int piece) { (*static_cast<const Body*>(context))(piece); }, &body, pieces);
    }

    // Of the calling thread alone; may be used by any number of threads at once.
    static Pool& alone() {
        static Pool one(1);
        return one;
    }

    int threads() const { return int(workers_.size()) + 1; }

  private:
    using Call = void (*)(const void*, int);
    void run(Call call, const void* context, int pieces);
    bool take(uint32_t job);
    void serve();

    // High half: number of the job; low half: next piece. Claiming is one compare-and-swap, so a claim that succeeds
    // proves that call_, context_ and pieces_ still belong to that job.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<Call> call_{nullptr};
    std::atomic<const void*> context_{nullptr};
    std::atomic<int> pieces_{0};
    std::atomic<int> done_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    std::mutex one_job_, sleep_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
};
