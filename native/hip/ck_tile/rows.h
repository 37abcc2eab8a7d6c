/* Two small kernels beside a Composable Kernel instance. Each does `count` rows of `length` units, a block a row. */
#pragma once

namespace gemmill::hip::ck {

struct Rows {
    const void* in;
    void* out;
    long long count, length, ld_in, ld_out;
};

constexpr unsigned kThreads = 256;
constexpr unsigned kMaxBlocks = 65535;  // they stride over the rest of the rows

#if defined(__HIP__) || defined(GEMMILL_ROWS)

// C = 0, for K = 0: Composable Kernel multiplies one tile at least.
__device__ inline void zero_rows(const Rows& rows) {
    auto* const out = static_cast<unsigned short*>(rows.out);
    for (long long row = blockIdx.x; row < rows.count; row += kMaxBlocks)
        for (long long i = threadIdx.x; i < rows.length; i += kThreads) out[row * rows.ld_out + i] = 0;
}

// Composable Kernel reads eight int4 as their nibbles 0 2 4 6 1 3 5 7 from the low end; gemmill's A has the even
// element of a byte in its high nibble.
__device__ inline void permute_int4_rows(const Rows& rows) {
    const auto* const in = static_cast<const unsigned*>(rows.in);
    auto* const out = static_cast<unsigned*>(rows.out);
    const auto gather = [](unsigned nibbles) {  // the low nibble of each byte, to 16 bits
        nibbles = (nibbles | nibbles >> 4) & 0x00ff00ff;
        return (nibbles | nibbles >> 8) & 0xffff;
    };
    for (long long row = blockIdx.x; row < rows.count; row += kMaxBlocks)
        for (long long i = threadIdx.x; i < rows.length; i += kThreads) {
            const unsigned word = in[row * rows.ld_in + i];
            out[row * rows.ld_out + i] = gather(word >> 4 & 0x0f0f0f0f) | gather(word & 0x0f0f0f0f) << 16;
        }
}

#endif

}  // namespace gemmill::hip::ck
