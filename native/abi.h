/* The C ABI of every gemmill kernel library. One library holds one kernel.
 *
 * A library links against libc and libm alone; GPU drivers are opened with dlopen when first needed, so it
 * loads, and says what it is, on any machine of its CPU architecture.
 *
 * Return codes of every function that returns int (except the count and the version):
 *   GEMMILL_OK            success
 *   GEMMILL_BAD_ARGUMENT  an argument is wrong; gemmill_last_error() names it, its value and what was expected
 *   GEMMILL_UNSUPPORTED   well formed, but not what this kernel or this machine can do
 *   GEMMILL_DEVICE_ERROR  memory, device or driver failed
 */
#ifndef GEMMILL_ABI_H
#define GEMMILL_ABI_H

#include <stdint.h>

#define GEMMILL_ABI_VERSION 2

#define GEMMILL_OK 0
#define GEMMILL_BAD_ARGUMENT (-1)
#define GEMMILL_UNSUPPORTED (-2)
#define GEMMILL_DEVICE_ERROR (-3)

#define GEMMILL_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The dispatcher ABI: host pointers, packed operands ------------------------------------------------ */

/* Check that this machine can run the kernel and make it ready. Idempotent, thread-safe. */
GEMMILL_EXPORT int dispatcher_initialize(void);

/* C[M,N] = sum over groups g of AQ[m,g] * sum over k in g of A[m,k] * B[k,n], a group being 128 consecutive k.
 *
 * All pointers are host memory of any alignment. Strides are leading dimensions in elements and must be the
 * packed ones of the kernel's layout. QK_A = ceil(K / 128). k_batch = 1. AQ is never preshuffled here: a
 * preshufflequant kernel shuffles it itself. M = 0 or N = 0 does nothing; K = 0 writes zeros.
 * time_ms: when not NULL, receives the mean time of the kernel alone, after a warm-up, in milliseconds. */
GEMMILL_EXPORT int dispatcher_run_aquant_gemm(const void* A, const void* AQ, const void* B, void* C,
                                              int64_t M, int64_t N, int64_t K,
                                              int64_t stride_A, int64_t stride_AQ, int64_t stride_B,
                                              int64_t stride_C, int64_t QK_A, int k_batch, float* time_ms);

GEMMILL_EXPORT const char* dispatcher_get_kernel_name(void);
GEMMILL_EXPORT int dispatcher_get_kernel_count(void); /* 1 */

/* Give back everything the library holds; a later call initialises it again. */
GEMMILL_EXPORT void dispatcher_cleanup(void);

/* ---- The gemmill ABI: device pointers, leading dimensions, a stream ------------------------------------- */

GEMMILL_EXPORT int gemmill_abi_version(void);

/* JSON object, UTF-8: abi, name, arch, backend, encoding and the whole config. Static storage. */
GEMMILL_EXPORT const char* gemmill_manifest(void);

/* What the last failing call of this thread had to say; "" when none failed. Valid until its next failing call. */
GEMMILL_EXPORT const char* gemmill_last_error(void);

/* Bytes of workspace that gemmill_gemm_aquant takes for this problem (0 for most kernels), or a negative code. */
GEMMILL_EXPORT int64_t gemmill_workspace_bytes(int64_t M, int64_t N, int64_t K);

/* The same product on device pointers (host pointers for the cpu backend).
 *
 * Leading dimensions are in elements, each at least the packed one. AQ of a preshufflequant kernel is already
 * shuffled, (T, M, b) with b = tile_k / 128 and T = ceil(QK / b); ldaq is then the distance between two of its
 * tiles, at least M * b. workspace: at least gemmill_workspace_bytes(M, N, K) bytes of the device, 256-byte
 * aligned, for this call alone until it is done; or NULL when that is 0, and always for the cuda backend, whose
 * kernels then go a slower way. stream: CUstream or hipStream_t; NULL is the default stream, and the only value the cpu
 * backend takes. Allocates nothing per call and can be captured in a CUDA or HIP graph. */
GEMMILL_EXPORT int gemmill_gemm_aquant(const void* A, const void* AQ, const void* B, void* C,
                                       int64_t M, int64_t N, int64_t K,
                                       int64_t lda, int64_t ldaq, int64_t ldb, int64_t ldc,
                                       void* workspace, int64_t workspace_bytes, void* stream);

/* The arguments of gemmill_gemm_aquant, and the device that all pointers are memory of (0 for the cpu backend). */
typedef struct GemmillCall {
    const void *A, *AQ, *B;
    void* C;
    int64_t M, N, K, lda, ldaq, ldb, ldc;
    void* workspace;
    int64_t workspace_bytes;
    void* stream;
    int64_t device;
} GemmillCall;

/* gemmill_gemm_aquant for a caller who knows where the pointers lie, as torch does of its tensors: the driver is not
 * asked, and a pointer to other memory is an error of the device, after which its context can't be used. Where the current
 * context is not the device's, its primary one is made current for the call (cuda), or the call refused (hip). One
 * argument, since foreign function interfaces take a time for each. */
GEMMILL_EXPORT int gemmill_launch(const GemmillCall* call);

#ifdef __cplusplus
}
#endif
#endif /* GEMMILL_ABI_H */
