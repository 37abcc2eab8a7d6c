// gemmill_convert on the host, thread after thread; test_convert.py puts functions of ptx_on_host.h where PTX was.
// Arguments: rows of A, rows of B, k, bytes beyond the least pitch. Prints how many bytes of the copies are wrong.
#include "convert.cuh"

#include <stdio.h>

using namespace gemmill;

struct Config {
    static constexpr Elem a = Elem::ELEM_A, b = Elem::e4m3;
    static constexpr bool a_col = A_COL, b_col = B_COL;
    static constexpr int tile_m = 128, tile_n = 128;
};

static uint8_t e4m3(int code) {
    constexpr uint8_t values[16] = {0xD0, 0xCE, 0xCC, 0xCA, 0xC8, 0xC4, 0xC0, 0xB8, 0x00, 0x38, 0x40, 0x44, 0x48, 0x4A, 0x4C, 0x4E};
    return values[code];
}

// One operand, its memory no longer than it must be, for the address sanitizer to see.
struct Matrix {
    Conversion conversion = {};
    uint8_t *from, *to;
    int64_t bytes;
    bool i4, mn;
    int k;

    Matrix(bool used, Elem elem, bool mn, int rows, int k, int gap) : from(nullptr), to(nullptr), bytes(0), i4(elem == Elem::i4), mn(mn), k(k) {
        if (!used) return;
        const int64_t lines = mn ? k : rows, line = ((mn ? rows : k) + i4) / (i4 ? 2 : 1);
        const int64_t pitch = (line + 15) / 16 * 16 + gap, to_pitch = (k + 15) / 16 * 16;
        from = static_cast<uint8_t*>(malloc((lines - 1) * pitch + line));
        for (int64_t i = 0; i < (lines - 1) * pitch + line; ++i) from[i] = static_cast<uint8_t>(rand() >> 7);
        bytes = rows * to_pitch;
        to = static_cast<uint8_t*>(malloc(bytes));
        memset(to, 0xFF, bytes);
        conversion = {from, to, pitch, to_pitch, rows};
    }
    ~Matrix() {
        free(from);
        free(to);
    }
    int64_t wrong() const {
        int64_t count = 0;
        for (int64_t i = 0; i < bytes; ++i) {
            const int64_t row = i / conversion.to_pitch, kk = i % conversion.to_pitch;
            const int64_t line = mn ? kk : row, at = mn ? row : kk;
            uint8_t right = 0;
            if (kk < k) {
                right = from[line * conversion.pitch + at / (i4 ? 2 : 1)];
                if (i4) right = e4m3(at % 2 ? right & 15 : right >> 4);
            }
            count += to[i] != right;
        }
        return count;
    }
    int a_block() const { return mn ? kConvertRows<true> : kConvertRows<false>; }
    int blocks() const { return from ? (conversion.rows + a_block() - 1) / a_block() * ((k + kConvertK - 1) / kConvertK) : 0; }
};

int main(int, char** argv) {
    const int m = atoi(argv[1]), n = atoi(argv[2]), k = atoi(argv[3]), gap = atoi(argv[4]);
    const Matrix a(Plain<Config>::copies_a, Config::a, Config::a_col, m, k, gap), b(Plain<Config>::copies_b, Config::b, true, n, k, gap);
    const Conversions p = {a.conversion, b.conversion, k, a.blocks()};
    for (blockIdx.x = 0; blockIdx.x < a.blocks() + b.blocks(); ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < kConvertThreads; ++threadIdx.x) convert<Config>(p);
    printf("%lld of %lld\n", static_cast<long long>(a.wrong() + b.wrong()), static_cast<long long>(a.bytes + b.bytes));
}
