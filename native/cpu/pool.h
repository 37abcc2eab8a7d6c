/* The thread pool of one kernel library, and the workspaces its threads use.
 *
 * Threads start at the first call that can use them and sleep between calls. One parallel call runs at a time;
 * single-threaded calls run beside it as long as workspaces are free, and wait for one otherwise. Everything is
 * allocated when the pool opens; a call allocates nothing.
 *
 * After fork() the child has no threads of ours: handlers registered at first use hold the locks across the fork
 * and reset the child's pool, which then starts threads of its own.
 */
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "host/error.h"
#include "cpu/float_env.h"

namespace gemmill {

using ItemFunction = void (*)(void* context, int64_t item, char* scratch);

constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;

class Pool {
  public:
    explicit constexpr Pool(size_t scratch_bytes) : scratch_bytes_(round_up(scratch_bytes, kPage)) {}

    /* Enter a call: open the pool if it is closed. Returns a code; leave() must follow GEMMILL_OK. */
    int enter() {
        pthread_mutex_lock(&lock_);
        while (closing_) pthread_cond_wait(&changed_, &lock_);
        const int code = open_ ? GEMMILL_OK : open();
        if (code == GEMMILL_OK) ++active_;
        pthread_mutex_unlock(&lock_);
        return code;
    }

    void leave() {
        pthread_mutex_lock(&lock_);
        if (--active_ == 0 && closing_) pthread_cond_broadcast(&changed_);
        pthread_mutex_unlock(&lock_);
    }

    int threads() const { return thread_limit_; }

    /* Call function(context, item, scratch) for every item, on at most `threads` threads, the caller's included. */
    void run(int64_t items, int threads, ItemFunction function, void* context) {
        if (threads > items) threads = static_cast<int>(items);
        if (threads <= 1) {
            const FloatEnv env;
            Slot slot(*this);
            for (int64_t i = 0; i < items; ++i) function(context, i, slot.scratch());
            return;
        }
        pthread_mutex_lock(&call_lock_);
        start_workers(threads - 1);
        pthread_mutex_lock(&lock_);
        function_ = function;
        context_ = context;
        items_ = items;
        next_item_ = 0;
        wanted_ = min_of(threads - 1, workers_);
        pthread_cond_broadcast(&work_);
        pthread_mutex_unlock(&lock_);
        take_items();
        pthread_mutex_lock(&lock_);
        wanted_ = 0; /* workers that have not woken yet need not start */
        while (running_) pthread_cond_wait(&done_, &lock_);
        pthread_mutex_unlock(&lock_);
        pthread_mutex_unlock(&call_lock_);
    }

    /* Wait for calls in flight, join the threads, free everything. The next enter() opens the pool again. Runs on any
     * CPU: unloading a library that found its CPU wanting comes here too. */
    GEMMILL_BASELINE void close() {
        pthread_mutex_lock(&lock_);
        while (closing_) pthread_cond_wait(&changed_, &lock_);
        if (open_) {
            closing_ = true;
            while (active_) pthread_cond_wait(&changed_, &lock_);
            stop_ = true;
            pthread_cond_broadcast(&work_);
            pthread_mutex_unlock(&lock_);
            for (int i = 0; i < workers_; ++i) pthread_join(worker_ids_[i], nullptr);
            pthread_mutex_lock(&lock_);
            release();
            stop_ = closing_ = open_ = false;
            pthread_cond_broadcast(&changed_);
        }
        pthread_mutex_unlock(&lock_);
    }

    /* fork() handlers. */
    void before_fork() {
        pthread_mutex_lock(&call_lock_);
        pthread_mutex_lock(&lock_);
    }
    void after_fork_parent() {
        pthread_mutex_unlock(&lock_);
        pthread_mutex_unlock(&call_lock_);
    }
    void after_fork_child() {
        call_lock_ = lock_ = PTHREAD_MUTEX_INITIALIZER;
        changed_ = work_ = done_ = slot_free_ = PTHREAD_COND_INITIALIZER;
        workers_ = wanted_ = running_ = active_ = 0;
        stop_ = closing_ = false;
        free_slots_ = open_ ? thread_limit_ : 0;
        for (int i = 0; i < free_slots_; ++i) slots_[i] = i;
    }

  private:
    /* A workspace held while a thread works on items. */
    class Slot {
      public:
        explicit Slot(Pool& pool) : pool_(pool) {
            pthread_mutex_lock(&pool.lock_);
            while (pool.free_slots_ == 0) pthread_cond_wait(&pool.slot_free_, &pool.lock_);
            index_ = pool.slots_[--pool.free_slots_];
            pthread_mutex_unlock(&pool.lock_);
        }
        ~Slot() {
            pthread_mutex_lock(&pool_.lock_);
            pool_.slots_[pool_.free_slots_++] = index_;
            pthread_cond_signal(&pool_.slot_free_);
            pthread_mutex_unlock(&pool_.lock_);
        }
        char* scratch() const { return pool_.scratch_ + static_cast<size_t>(index_) * pool_.scratch_bytes_; }

      private:
        Slot(const Slot&) = delete;
        Slot& operator=(const Slot&) = delete;
        Pool& pool_;
        int index_;
    };

    /* Count the CPUs this process may use, and apply GEMMILL_NUM_THREADS. Returns a code. */
    static int count_threads(int* threads) {
        unsigned long mask[1024 / sizeof(unsigned long)] = {}; /* 8192 CPUs */
        int cpus = 0;
        if (sched_getaffinity(0, sizeof mask, reinterpret_cast<cpu_set_t*>(mask)) == 0) {
            for (unsigned long word : mask) cpus += __builtin_popcountl(word);
        }
        *threads = cpus > 0 ? cpus : 1;
        const char* text = getenv("GEMMILL_NUM_THREADS");
        if (text == nullptr || *text == 0) return GEMMILL_OK;
        int wanted = 0;
        for (const char* c = text; *c; ++c) {
            if (*c < '0' || *c > '9' || wanted > 1000000) {
                wanted = 0;
                break;
            }
            wanted = 10 * wanted + (*c - '0');
        }
        if (wanted == 0) {
            return (Message() << "GEMMILL_NUM_THREADS = \"" << text << "\": expected an integer from 1 to 1000000")
                .bad_argument();
        }
        *threads = min_of(*threads, wanted);
        return GEMMILL_OK;
    }

    /* Allocate everything; lock_ is held. */
    int open() {
        const int code = count_threads(&thread_limit_);
        if (code != GEMMILL_OK) return code;
        const size_t count = static_cast<size_t>(thread_limit_);
        void* scratch = nullptr;
        const bool have = posix_memalign(&scratch, kHugePage, count * scratch_bytes_) == 0;
#if defined(MADV_HUGEPAGE)
        if (have) madvise(scratch, count * scratch_bytes_, MADV_HUGEPAGE); /* a wish: fewer TLB misses */
#endif
        scratch_ = have ? static_cast<char*>(scratch) : nullptr;
        slots_ = static_cast<int*>(malloc(count * sizeof(int)));
        worker_ids_ = static_cast<pthread_t*>(malloc(count * sizeof(pthread_t)));
        if (!have || !slots_ || !worker_ids_) {
            release();
            return (Message() << "out of memory: " << static_cast<int64_t>(count * scratch_bytes_)
                              << " bytes of workspace for " << thread_limit_ << " threads")
                .device_error();
        }
        for (int i = 0; i < thread_limit_; ++i) slots_[i] = i;
        free_slots_ = thread_limit_;
        open_ = true;
        return GEMMILL_OK;
    }

    void release() {
        free(scratch_);
        free(slots_);
        free(worker_ids_);
        scratch_ = nullptr;
        slots_ = nullptr;
        worker_ids_ = nullptr;
        workers_ = free_slots_ = 0;
    }

    /* Have `count` workers, or as many as the system gives; call_lock_ is held. */
    void start_workers(int count) {
        if (workers_ >= count) return;
        sigset_t all, before;
        sigfillset(&all); /* signals are the program's business: its own threads handle them */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        while (workers_ < count && pthread_create(&worker_ids_[workers_], nullptr, worker_main, this) == 0) ++workers_;
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    static void* worker_main(void* self) {
        static_cast<Pool*>(self)->work();
        return nullptr;
    }

    void work() {
        pthread_mutex_lock(&lock_);
        for (;;) {
            while (!stop_ && wanted_ == 0) pthread_cond_wait(&work_, &lock_);
            if (stop_) break;
            --wanted_;
            ++running_;
            pthread_mutex_unlock(&lock_);
            take_items();
            pthread_mutex_lock(&lock_);
            if (--running_ == 0) pthread_cond_signal(&done_);
        }
        pthread_mutex_unlock(&lock_);
    }

    void take_items() {
        const FloatEnv env;
        Slot slot(*this);
        for (;;) {
            const int64_t item = __atomic_fetch_add(&next_item_, 1, __ATOMIC_RELAXED);
            if (item >= items_) return;
            function_(context_, item, slot.scratch());
        }
    }

    const size_t scratch_bytes_;
    pthread_mutex_t call_lock_ = PTHREAD_MUTEX_INITIALIZER; /* held by the one parallel call */
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;      /* guards everything below */
    pthread_cond_t changed_ = PTHREAD_COND_INITIALIZER;     /* closing_ or active_ */
    pthread_cond_t work_ = PTHREAD_COND_INITIALIZER;
    pthread_cond_t done_ = PTHREAD_COND_INITIALIZER;
    pthread_cond_t slot_free_ = PTHREAD_COND_INITIALIZER;

    bool open_ = false, closing_ = false, stop_ = false;
    int active_ = 0; /* calls between enter() and leave() */
    int thread_limit_ = 1;
    char* scratch_ = nullptr;
    int* slots_ = nullptr; /* the first free_slots_ entries name free workspaces */
    int free_slots_ = 0;
    pthread_t* worker_ids_ = nullptr;
    int workers_ = 0;

    ItemFunction function_ = nullptr;
    void* context_ = nullptr;
    int64_t items_ = 0, next_item_ = 0;
    int wanted_ = 0;  /* workers that should still join the current call */
    int running_ = 0; /* workers that did */
};

}  // namespace gemmill
