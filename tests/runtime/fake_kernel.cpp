// A slow and plain kernel library for tests, with the ABI of native/abi.h, and the faults a bad one may have.
//
// -DNAME, ARCH           what it says it is
// -DKIND_A, KIND_B, KIND_AQ  operand kinds: E4M3, E5M2, INT4, F32 (OCP encodings)
// -DA_COL, B_COL, AQ_COL storage orders, 0 or 1
// -DPER_TILE             groups a tile of a preshuffled AQ, 0 where AQ is not shuffled
// -DOUT                  F16, BF16 or F32
// -DMAY_HAVE_WORKSPACE   takes one, or none; fake_last_workspace() returns its bytes
// -DTAKES_STREAM         takes a stream, as a GPU's kernel does; fake_last_stream() returns it, and fake_last_device()
//                        the device of the last gemmill_launch
// -DFAULT_...            one of the faults below
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi.h"

#define E4M3 1
#define E5M2 2
#define INT4 3
#define F32 4
#define F16 5
#define BF16 6
#define STRING_(x) #x
#define STRING(x) STRING_(x)

namespace {

thread_local char last_error[256] = "";
#ifdef TAKES_STREAM
void* last_stream = nullptr;
int64_t last_device = -1;
int64_t last_workspace = -1;
#endif

int fail(int code, const char* argument, long long value) {
    std::snprintf(last_error, sizeof last_error, "%s = %lld: expected another value", argument, value);
    return code;
}

float decode8(int kind, unsigned char code) {
    const int bits = kind == E4M3 ? 3 : 2, bias = kind == E4M3 ? 7 : 15;
    const int e = (code & 127) >> bits, f = code & ((1 << bits) - 1);
    const float sign = code & 128 ? -1.f : 1.f;
    if (kind == E4M3 && (code & 127) == 127) return NAN;
    if (kind == E5M2 && e == 31) return f ? NAN : sign * INFINITY;
    const float significand = e ? 1.f + float(f) / float(1 << bits) : float(f) / float(1 << bits);
    return sign * std::ldexp(significand, (e ? e : 1) - bias);
}

float load(const void* base, int kind, int64_t i) {
    const auto* bytes = static_cast<const unsigned char*>(base);
    if (kind == INT4) return float((i & 1 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4) - 8);
    if (kind != F32) return decode8(kind, bytes[i]);
    float value;
    std::memcpy(&value, bytes + 4 * i, 4);
    return value;
}

unsigned short to_f16(float x) {
    const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
    x = std::fabs(x);
    if (std::isnan(x)) return 0x7e00;
    if (x >= 65520.f) return sign | 0x7c00;
    if (x == 0) return sign;
    int e = 0;
    std::frexp(x, &e);
    e = e - 1 < -14 ? -14 : e - 1;
    const float scaled = std::ldexp(x, 10 - e);
#ifdef FAULT_TRUNCATES
    const int q = int(scaled);
#else
    const int q = int(std::nearbyint(scaled));
#endif
    return static_cast<unsigned short>(sign | ((e + 14) * 1024 + q));
}

void store(void* base, int64_t i, float x) {
    auto* bytes = static_cast<unsigned char*>(base);
    if (OUT == F32) {
        std::memcpy(bytes + 4 * i, &x, 4);
        return;
    }
    unsigned short half = to_f16(x);
    if (OUT == BF16) {
        unsigned word;
        std::memcpy(&word, &x, 4);
        half = static_cast<unsigned short>(std::isnan(x) ? 0x7fc0 : (word + 0x7fff + ((word >> 16) & 1)) >> 16);
    }
    std::memcpy(bytes + 2 * i, &half, 2);
}

volatile int sink;

// shuffled: AQ is stored (T, M, PER_TILE).
void multiply(const void* a, const void* aq, const void* b, void* c, int64_t M, int64_t N, int64_t K, int64_t lda,
              int64_t ldaq, int64_t ldb, int64_t ldc, bool shuffled) {
    const int64_t groups = (K + 127) / 128;
    for (int64_t m = 0; m < M; ++m) {
#ifdef FAULT_TAIL_UNWRITTEN
        if (m == 2) continue;
#endif
        for (int64_t n = 0; n < N; ++n) {
            float sum = 0;
            for (int64_t g = 0; g < groups; ++g) {
                float part = 0;
                for (int64_t k = g * 128; k < K && k < g * 128 + 128; ++k)
                    part += load(a, KIND_A, A_COL ? k * lda + m : m * lda + k) * load(b, KIND_B, B_COL ? n * ldb + k : k * ldb + n);
                int64_t at = g;
#ifdef FAULT_SWAPS_GROUPS
                if ((g ^ 1) < groups) at = g ^ 1;
#endif
                const int64_t per = PER_TILE ? PER_TILE : 1;
                const int64_t i = shuffled ? at / per * ldaq + m * per + at % per : AQ_COL ? at * ldaq + m : m * ldaq + at;
                float scale = load(aq, KIND_AQ, i);
#ifdef FAULT_IGNORES_AQ
                scale = 1;
#endif
#ifdef FAULT_UNSIGNED_AQ
                scale = std::fabs(scale);
#endif
#ifdef FAULT_SHORT_AQ
                unsigned word;
                std::memcpy(&word, &scale, 4);
                word &= 0xffffff00;
                std::memcpy(&scale, &word, 4);
#endif
                sum += scale * part;
            }
#ifdef FAULT_ZEROS
            sum = 0;
#endif
#ifdef FAULT_LOSES_NAN
            if (std::isnan(sum)) sum = 0;
#endif
#ifdef FAULT_COARSE
            sum *= 1.001f;
#endif
            store(c, m * ldc + n, sum);
        }
    }
#ifdef FAULT_WRITES_PAST_C
    store(c, (M - 1) * ldc + N, 1.f);
#endif
#ifdef FAULT_WRITES_BEFORE_C
    store(c, -1, 1.f);
#endif
#ifdef FAULT_WRITES_IN_GAP
    if (ldc > N && M > 1) store(c, N, 1.f);
#endif
#ifdef FAULT_READS_PAST_A
    const int64_t count = A_COL ? (K - 1) * lda + M : (M - 1) * lda + K;
    sink = static_cast<const unsigned char*>(a)[KIND_A == INT4 ? (count + 1) / 2 : count];
#endif
#ifdef FAULT_CHANGES_B
    ++*static_cast<unsigned char*>(const_cast<void*>(b));
#endif
#ifdef FAULT_SEGFAULTS
    *reinterpret_cast<volatile int*>(8) = 1;
#endif
#ifdef FAULT_HANGS
    for (;;) sink = 1;
#endif
#ifdef FAULT_ABORTS
    std::abort();
#endif
#ifdef FAULT_EXITS
    std::exit(0);
#endif
#ifdef FAULT_PRINTS
    std::printf("{\"outcome\": \"passed\"}\n");
#endif
}

}  // namespace

extern "C" {

#ifdef TAKES_STREAM
void* fake_last_stream(void) { return last_stream; }
int64_t fake_last_device(void) { return last_device; }
int64_t fake_last_workspace(void) { return last_workspace; }
#endif

int dispatcher_initialize(void) {
#ifdef FAULT_NO_DEVICE
    std::snprintf(last_error, sizeof last_error, "no device here");
    return GEMMILL_DEVICE_ERROR;
#endif
    return 0;
}

void dispatcher_cleanup(void) {}
int dispatcher_get_kernel_count(void) { return 1; }
const char* dispatcher_get_kernel_name(void) { return STRING(NAME); }

#ifdef FAULT_OTHER_ABI
int gemmill_abi_version(void) { return 99; }
#else
int gemmill_abi_version(void) { return GEMMILL_ABI_VERSION; }
#endif

#ifdef FAULT_BAD_MANIFEST
const char* gemmill_manifest(void) { return "{not json"; }
#else
const char* gemmill_manifest(void) { return "{\"abi\": 2, \"name\": \"" STRING(NAME) "\", \"arch\": \"" ARCH "\"}"; }
#endif

const char* gemmill_last_error(void) {
#ifdef FAULT_NO_TEXT
    return "";
#endif
    return last_error;
}

int64_t gemmill_workspace_bytes(int64_t, int64_t, int64_t) {
#if defined WANTS_WORKSPACE || defined MAY_HAVE_WORKSPACE
    return 1000;
#endif
    return 0;
}

int gemmill_gemm_aquant(const void* a, const void* aq, const void* b, void* c, int64_t M, int64_t N, int64_t K,
                        int64_t lda, int64_t ldaq, int64_t ldb, int64_t ldc, void* workspace, int64_t workspace_bytes,
                        void* stream) {
#ifdef MAY_HAVE_WORKSPACE
    last_workspace = workspace_bytes;
    if (!workspace != !workspace_bytes) return fail(-1, "workspace", workspace_bytes);
#elif defined WANTS_WORKSPACE
    if (!workspace || workspace_bytes < 1000 || reinterpret_cast<uintptr_t>(workspace) % 256)
        return fail(-1, "workspace", workspace_bytes);
    std::memset(workspace, 1, 1000);
#ifdef FAULT_WRITES_BEFORE_WORKSPACE
    static_cast<char*>(workspace)[-1] = 0;
#endif
#else
    (void)workspace, (void)workspace_bytes;
#endif
#ifdef FAULT_RUN_FAILS
    return fail(GEMMILL_DEVICE_ERROR, "device", M);
#endif
#ifndef FAULT_UNCHECKED_DEVICE
    if (!a) return fail(-1, "A", 0);
    if (!aq) return fail(-1, "AQ", 0);
    if (!b) return fail(-1, "B", 0);
    if (!c) return fail(-1, "C", 0);
    if (M < 0) return fail(-1, "M", M);
    if (N < 0) return fail(-1, "N", N);
    if (K < 0) return fail(-1, "K", K);
    const int64_t groups = (K + 127) / 128;
    if (lda < (A_COL ? M : K)) return fail(-1, "lda", lda);
    if (ldaq < (PER_TILE ? M * PER_TILE : AQ_COL ? M : groups)) return fail(-1, "ldaq", ldaq);
    if (ldb < (B_COL ? K : N)) return fail(-1, "ldb", ldb);
    if (ldc < N) return fail(-1, "ldc", ldc);
#ifdef TAKES_STREAM
    last_stream = stream;
#else
    if (stream) return fail(-2, "stream", 1);
#endif
#endif
    multiply(a, aq, b, c, M, N, K, lda, ldaq, ldb, ldc, PER_TILE > 0);
    return 0;
}

int gemmill_launch(const GemmillCall* c) {
#ifdef TAKES_STREAM
    last_device = c->device;
#endif
    return gemmill_gemm_aquant(c->A, c->AQ, c->B, c->C, c->M, c->N, c->K, c->lda, c->ldaq, c->ldb, c->ldc, c->workspace,
                               c->workspace_bytes, c->stream);
}

int dispatcher_run_aquant_gemm(const void* a, const void* aq, const void* b, void* c, int64_t M, int64_t N, int64_t K,
                               int64_t stride_A, int64_t stride_AQ, int64_t stride_B, int64_t stride_C, int64_t QK_A,
                               int k_batch, float* time_ms) {
#ifndef FAULT_UNCHECKED
    if (!a) return fail(-1, "A", 0);
    if (!aq) return fail(-1, "AQ", 0);
    if (!b) return fail(-1, "B", 0);
    if (!c) return fail(-1, "C", 0);
    if (M < 0) return fail(-1, "M", M);
    if (N < 0) return fail(-1, "N", N);
    if (K < 0) return fail(-1, "K", K);
    const int64_t groups = (K + 127) / 128;
    if (stride_A != (A_COL ? M : K)) return fail(-1, "stride_A", stride_A);
    if (stride_AQ != (AQ_COL ? M : groups)) return fail(-1, "stride_AQ", stride_AQ);
    if (stride_B != (B_COL ? K : N)) return fail(-1, "stride_B", stride_B);
    if (stride_C != N) return fail(-1, "stride_C", stride_C);
    if (QK_A != groups) return fail(-1, "QK_A", QK_A);
    if (k_batch != 1) return fail(-2, "k_batch", k_batch);
#else
    if (!a || !aq || !b || !c || M < 0 || N < 0 || K < 0) return fail(-1, "argument", 0);
#endif
#ifdef FAULT_ALWAYS_UNSUPPORTED
    std::snprintf(last_error, sizeof last_error, "not today");
    return GEMMILL_UNSUPPORTED;
#endif
    if (time_ms) *time_ms = 0.5f;
    multiply(a, aq, b, c, M, N, K, stride_A, stride_AQ, stride_B, stride_C, false);
    return 0;
}

}  // extern "C"
