/* Argument checks of both entries. Each failure names the argument, its value and what was expected. */
#pragma once

#include "host/base.h"
#include "host/error.h"
#include "host/stored_shapes.h"

namespace gemmill {

inline int expect_at_least(const char* name, int64_t value, int64_t least) {
    if (value >= least) return GEMMILL_OK;
    return (Message() << name << " = " << value << ": expected at least " << least).bad_argument();
}

/* A bound of this backend, not of the ABI. */
inline int expect_at_most(const char* name, int64_t value, int64_t most) {
    if (value <= most) return GEMMILL_OK;
    return (Message() << name << " = " << value << ": expected at most " << most << " on this backend").unsupported();
}

inline int expect_equal(const char* name, int64_t value, int64_t expected, const char* why) {
    if (value == expected) return GEMMILL_OK;
    return (Message() << name << " = " << value << ": expected " << expected << ", " << why).bad_argument();
}

inline int expect_pointer(const char* name, const void* pointer, bool needed) {
    if (pointer || !needed) return GEMMILL_OK;
    return (Message() << name << " = NULL: expected the address of a matrix that is not empty").bad_argument();
}

/* Lines of `length` elements, `stride` apart: every byte offset must fit in 64 bits. */
inline int expect_addressable(const char* name, int64_t lines, int64_t stride, int64_t length) {
    constexpr int64_t most = INT64_MAX / 8; /* elements have 4 bytes at most; the rest is room for tile sizes */
    int64_t end = 0;
    const bool overflow = __builtin_mul_overflow(lines, stride, &end) || __builtin_add_overflow(end, length, &end);
    if (!overflow && end <= most) return GEMMILL_OK;
    return (Message() << name << ": " << lines << " lines with a stride of " << stride
                      << " elements: expected at most " << most << " elements in all")
        .bad_argument();
}

/* M, N and K, alone and as sizes of packed matrices. */
inline int check_sizes(int64_t m, int64_t n, int64_t k) {
    int code = expect_at_least("M", m, 0);
    if (!code) code = expect_at_least("N", n, 0);
    if (!code) code = expect_at_least("K", k, 0);
    if (!code) code = expect_addressable("A (M x K)", m, k, 0);
    if (!code) code = expect_addressable("B (K x N)", k, n, 0);
    if (!code) code = expect_addressable("C (M x N)", m, n, 0);
    return code;
}

GEMMILL_BASELINE inline int expect_call(const GemmillCall* call) {
    return call ? GEMMILL_OK : (Message() << "call is NULL: expected the arguments").bad_argument();
}

inline int check_pointers(const Problem& p) {
    const bool some = p.m > 0 && p.n > 0;
    int code = expect_pointer("A", p.a, some && p.k > 0);
    if (!code) code = expect_pointer("AQ", p.aq, some && p.k > 0);
    if (!code) code = expect_pointer("B", p.b, some && p.k > 0);
    if (!code) code = expect_pointer("C", p.c, some);
    return code;
}

/* dispatcher_run_aquant_gemm: every stride is the packed one. */
inline int check_packed(const Storage& storage, const Problem& p, int64_t groups, int k_batch) {
    int code = check_sizes(p.m, p.n, p.k);
    if (code) return code;
    const Shapes shapes = packed_shapes(storage, p.m, p.n, p.k);
    code = expect_equal("stride_A", p.lda, shapes.a.length, "the packed stride of this layout");
    if (!code) code = expect_equal("stride_AQ", p.ldaq, shapes.aq.length, "the packed stride of this layout");
    if (!code) code = expect_equal("stride_B", p.ldb, shapes.b.length, "the packed stride of this layout");
    if (!code) code = expect_equal("stride_C", p.ldc, shapes.c.length, "the packed stride of this layout");
    if (!code) code = expect_equal("QK_A", groups, ceil_div(p.k, kGroupK), "which is ceil(K / 128)");
    if (code) return code;
    if (k_batch != 1) {
        return (Message() << "k_batch = " << k_batch << ": expected 1, how k is split is not the caller's choice")
            .unsupported();
    }
    return check_pointers(p);
}

/* gemmill_gemm_aquant: leading dimensions may leave gaps, and AQ is stored as the kernel reads it. */
inline int check_strided(const Storage& storage, const Problem& p) {
    int code = check_sizes(p.m, p.n, p.k);
    if (code) return code;
    const Shapes shapes = stored_shapes(storage, p.m, p.n, p.k);
    code = expect_at_least("lda", p.lda, shapes.a.length);
    if (!code) code = expect_at_least("ldaq", p.ldaq, shapes.aq.length);
    if (!code) code = expect_at_least("ldb", p.ldb, shapes.b.length);
    if (!code) code = expect_at_least("ldc", p.ldc, shapes.c.length);
    if (!code) code = expect_addressable("A", shapes.a.lines, p.lda, shapes.a.length);
    if (!code) code = expect_addressable("AQ", shapes.aq.lines, p.ldaq, shapes.aq.length);
    if (!code) code = expect_addressable("B", shapes.b.lines, p.ldb, shapes.b.length);
    if (!code) code = expect_addressable("C", shapes.c.lines, p.ldc, shapes.c.length);
    return code ? code : check_pointers(p);
}

}  // namespace gemmill
