#include "hip/sim/machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "hip/sim/fiber.h"
#include "hip/sim/matrix.h"

namespace gemmill::hip::sim {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr u8 kPoison = 0xff;
constexpr u32 kGuardBytes = 64;
constexpr u16 kNobody = 0xffff;
constexpr u16 kMany = 0xfffe;

const char* const kArchNames[] = {"gfx90a", "gfx942", "gfx950"};

enum class Stop { running, finished, barrier, matrix, shuffle, vote };

struct Lane {
    Fiber fiber;
    Stop stop = Stop::running;
    MatrixOp op{};
    u8 p[32], q[32];
    f32x4 d;
    u32 value, from;  // of a shuffle
    u64 vote;         // the lane's own, then everybody's
};

/* Who touched a word of LDS last, and in which interval between barriers. */
struct Shadow {
    u32 write_epoch = 0, read_epoch = 0;  // 0: never
    u16 writer = kNobody, reader = kNobody;
};

struct Random {  // xorshift64*
    u64 state;
    u32 below(u32 n) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return (u32)((state * 0x2545f4914f6cdd1dull >> 33) % n);
    }
};

std::mutex memory_mutex;
std::map<const u8*, std::size_t> memory;

class Block;
Block* current = nullptr;  // one launch at a time, see run()

class Block {
   public:
    Block(const Launch& launch, u8* stacks) : launch_(launch), random_{launch.seed * 2 + 1}, stacks_(stacks) {
        lanes_.resize(launch.kernel->threads);
        lds_.resize(kGuardBytes + launch.kernel->lds_bytes + kGuardBytes);
    }

    std::string run(u32 x, u32 y) {
        x_ = x;
        y_ = y;
        shadow_.assign(launch_.kernel->lds_bytes / 4, Shadow{});
        std::memset(lds_.data(), kPoison, lds_.size());
        epoch_ = 1;
        for (u32 t = 0; t < lanes_.size(); ++t) {
            lanes_[t].stop = Stop::running;
            lanes_[t].fiber.prepare(stacks_ + t * kStackBytes, kStackBytes, &Block::lane_main, this);
        }
        while (error_.empty() && schedule()) {
        }
        for (u32 i = 0; error_.empty() && i < kGuardBytes; ++i)
            if (lds_[i] != kPoison || lds_[lds_.size() - 1 - i] != kPoison) fail("LDS guard bytes were overwritten");
        return error_;
    }

    /* ---- On a lane ---- */

    u32 thread() const { return thread_; }
    u32 x() const { return x_; }
    u32 y() const { return y_; }

    void pause(Stop why) {
        Lane& lane = lanes_[thread_];
        lane.stop = why;
        Fiber::switch_to(lane.fiber, scheduler_);
    }

    // Lanes are not resumed after a failure.
    __attribute__((format(printf, 2, 3))) void fail_lane(const char* format, ...) {
        char text[512];
        std::va_list list;
        va_start(list, format);
        std::vsnprintf(text, sizeof text, format, list);
        va_end(list);
        fail(text);
        pause(Stop::finished);
    }

    void check_global(const u8* p, u32 bytes) {
        if (p >= range_begin_ && p + bytes <= range_end_) return;  // as most of the time
        {
            const std::lock_guard<std::mutex> lock(memory_mutex);
            auto after = memory.upper_bound(p);
            if (after != memory.begin()) {
                --after;
                if (p + bytes <= after->first + after->second) {
                    range_begin_ = after->first;
                    range_end_ = after->first + after->second;
                    return;
                }
            }
        }
        fail_lane("global access of %u bytes at %p is outside of every allocation", bytes, (const void*)p);
    }

    u8* check_lds(u32 offset, u32 bytes, bool write) {
        if ((u64)offset + bytes > launch_.kernel->lds_bytes)
            fail_lane("LDS access of %u bytes at %u is outside of the kernel's %u", bytes, offset,
                      launch_.kernel->lds_bytes);
        if (bytes % 4 || offset % bytes) fail_lane("LDS access of %u bytes at %u is misaligned", bytes, offset);
        for (u32 word = offset / 4; word < (offset + bytes) / 4; ++word) touch(word, write);
        return lds_.data() + kGuardBytes + offset;
    }

    void matrix(MatrixOp op, const void* p, const void* q, u32 bytes, f32x4& d) {
        Lane& lane = lanes_[thread_];
        lane.op = op;
        std::memcpy(lane.p, p, bytes);
        std::memcpy(lane.q, q, bytes);
        lane.d = d;
        pause(Stop::matrix);
        d = lane.d;
    }

    u32 shuffle(u32 value, u32 from) {
        Lane& lane = lanes_[thread_];
        lane.value = value;
        lane.from = from;
        pause(Stop::shuffle);
        return lane.value;
    }

    u64 vote(bool mine) {
        Lane& lane = lanes_[thread_];
        lane.vote = mine;
        pause(Stop::vote);
        return lane.vote;
    }

   private:
    static void lane_main(void* self) {
        Block* const block = static_cast<Block*>(self);
        block->launch_.kernel->entry(block->launch_.args);
        block->pause(Stop::finished);
        __builtin_trap();
    }

    void fail(const char* text) {
        if (!error_.empty()) return;
        char where[128];
        std::snprintf(where, sizeof where, "block (%u, %u), lane %u, interval %u: ", x_, y_, thread_, epoch_);
        error_ = std::string(where) + text;
    }

    void touch(u32 word, bool write) {
        Shadow& s = shadow_[word];
        const u16 me = (u16)thread_;
        const bool others_wrote = s.write_epoch == epoch_ && s.writer != me;
        const bool others_read = s.read_epoch == epoch_ && s.reader != me;
        if (!write && s.write_epoch == 0) fail_lane("LDS word at %u is read but was never written", word * 4);
        if (others_wrote || (write && others_read))
            fail_lane("race on the LDS word at %u: lanes %u and %u %s it with no barrier between", word * 4, me,
                      others_wrote ? s.writer : s.reader, write ? (others_wrote ? "write" : "write and read")
                                                                : "read and write");
        if (write) {
            s.write_epoch = epoch_;
            s.writer = me;
        } else if (s.read_epoch == epoch_) {
            if (s.reader != me) s.reader = kMany;
        } else {
            s.read_epoch = epoch_;
            s.reader = me;
        }
    }

    u32 waves() const { return (u32)lanes_.size() / kWave; }
    Stop wave_stop(u32 wave) const { return lanes_[wave * kWave].stop; }

    // Run one wave to its next operation; false when all have finished.
    bool schedule() {
        u32 ready[64], count = 0, waiting = 0;
        for (u32 w = 0; w < waves(); ++w) {
            if (wave_stop(w) == Stop::running) ready[count++] = w;
            else if (wave_stop(w) == Stop::barrier) ++waiting;
        }
        if (count) {
            const u32 pick = launch_.order == Order::forward   ? 0
                             : launch_.order == Order::reverse ? count - 1
                                                               : random_.below(count);
            step(ready[pick]);
            return true;
        }
        if (!waiting) return false;
        if (waiting != waves()) {
            fail("a barrier was reached by some waves while others had finished");
            return false;
        }
        ++epoch_;
        for (Lane& lane : lanes_) lane.stop = Stop::running;
        return true;
    }

    void step(u32 wave) {
        Lane* const lanes = &lanes_[wave * kWave];
        const u32 first = launch_.order == Order::random ? random_.below(kWave) : 0;
        for (u32 i = 0; i < kWave; ++i) {
            const u32 lane = launch_.order == Order::reverse ? kWave - 1 - i : (first + i) % kWave;
            thread_ = wave * kWave + lane;
            Fiber::switch_to(scheduler_, lanes[lane].fiber);
            if (!error_.empty()) return;
        }
        for (u32 i = 1; i < kWave; ++i)
            if (lanes[i].stop != lanes[0].stop || (lanes[0].stop == Stop::matrix && lanes[i].op != lanes[0].op))
                return fail("the lanes of a wave came to different wave-wide operations");
        switch (lanes[0].stop) {
            case Stop::matrix: return execute_matrix(lanes);
            case Stop::shuffle: return execute_shuffle(lanes);
            case Stop::vote: return execute_vote(lanes);
            default: return;  // a barrier concerns the other waves too
        }
    }

    static void execute_shuffle(Lane* lanes) {
        u32 values[kWave];
        for (u32 i = 0; i < kWave; ++i) values[i] = lanes[lanes[i].from % kWave].value;
        for (u32 i = 0; i < kWave; ++i) {
            lanes[i].value = values[i];
            lanes[i].stop = Stop::running;
        }
    }

    static void execute_vote(Lane* lanes) {
        u64 votes = 0;
        for (u32 i = 0; i < kWave; ++i) votes |= lanes[i].vote << i;
        for (u32 i = 0; i < kWave; ++i) {
            lanes[i].vote = votes;
            lanes[i].stop = Stop::running;
        }
    }

    void execute_matrix(Lane* lanes) {
        const MatrixOp op = lanes[0].op;
        if (!info(op).on[(int)launch_.arch]) {
            const std::string text = std::string(kArchNames[(int)launch_.arch]) + " has no " + info(op).mnemonic;
            return fail(text.c_str());
        }
        WaveOperands wave;
        for (u32 i = 0; i < kWave; ++i) {
            std::memcpy(wave.p[i], lanes[i].p, 32);
            std::memcpy(wave.q[i], lanes[i].q, 32);
            std::memcpy(wave.d[i], &lanes[i].d, 16);
        }
        execute(op, launch_.arch, wave);
        for (u32 i = 0; i < kWave; ++i) {
            std::memcpy(&lanes[i].d, wave.d[i], 16);
            lanes[i].stop = Stop::running;
        }
    }

    const Launch& launch_;
    Random random_;
    u8* stacks_;
    Fiber scheduler_;
    std::vector<Lane> lanes_;
    std::vector<u8> lds_;
    std::vector<Shadow> shadow_;
    std::string error_;
    const u8* range_begin_ = nullptr;
    const u8* range_end_ = nullptr;
    u32 x_ = 0, y_ = 0, thread_ = 0, epoch_ = 1;
};

}  // namespace

std::string run(const Launch& launch) {
    static std::mutex one_launch;
    const std::lock_guard<std::mutex> lock(one_launch);
    // Not a vector: zeroing every stack would cost more than most launches.
    const std::unique_ptr<u8[]> stacks(new u8[launch.kernel->threads * kStackBytes]);
    Block block(launch, stacks.get());
    current = &block;
    std::string error;
    for (u32 y = 0; y < launch.grid_y && error.empty(); ++y)
        for (u32 x = 0; x < launch.grid_x && error.empty(); ++x) error = block.run(x, y);
    current = nullptr;
    return error;
}

void add_memory(void* base, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(memory_mutex);
    memory[static_cast<const u8*>(base)] = bytes;
}

bool remove_memory(void* base) {
    const std::lock_guard<std::mutex> lock(memory_mutex);
    return memory.erase(static_cast<const u8*>(base)) == 1;
}

u32 thread_index() { return current->thread(); }
u32 block_x() { return current->x(); }
u32 block_y() { return current->y(); }
void check_global(const void* p, u32 bytes) { current->check_global(static_cast<const u8*>(p), bytes); }
u8* check_lds(u32 offset, u32 bytes, bool write) { return current->check_lds(offset, bytes, write); }
void barrier() { current->pause(Stop::barrier); }
void matrix_op(MatrixOp op, const void* p, const void* q, u32 operand_bytes, f32x4& d) {
    current->matrix(op, p, q, operand_bytes, d);
}
u32 shuffle(u32 value, u32 from) { return current->shuffle(value, from); }
u64 vote(bool mine) { return current->vote(mine); }

}  // namespace gemmill::hip::sim
