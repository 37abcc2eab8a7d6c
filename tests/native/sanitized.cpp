// Calls a kernel's whole C ABI, good and bad, from a program built with sanitizers. KERNEL is the generated source.
#include KERNEL

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/wait.h>

#define EXPECT(condition)                                                \
    do {                                                                 \
        if (!(condition)) {                                              \
            printf("line %d: %s: %s\n", __LINE__, #condition, gemmill_last_error()); \
            return 1;                                                    \
        }                                                                \
    } while (0)

namespace {

int64_t groups(int64_t k) { return (k + 127) / 128; }

// Operands at the very end of their allocations, so that reading one byte too many is seen.
struct Operands {
    int64_t m, n, k, lda, ldaq, ldb;
    char *a, *aq, *b, *c;

    Operands(int64_t m_, int64_t n_, int64_t k_) : m(m_), n(n_), k(k_) {
        const bool a_rows = gemmill::Kernel::kOrderA == gemmill::Order::kContiguousK;
        const bool b_columns = gemmill::Kernel::kOrderB == gemmill::Order::kContiguousK;
        lda = a_rows ? k : m;
        ldb = b_columns ? k : n;
        ldaq = gemmill::packed_shapes(gemmill::kStorage, m, n, k).aq.length;
        a = make(m * k);
        aq = make(m * groups(k) * 4);
        b = make(n * k);
        c = make(m * n * static_cast<int64_t>(sizeof(gemmill::Kernel::Out::Type)));
    }

    ~Operands() {
        free(a);
        free(aq);
        free(b);
        free(c);
    }

    static char* make(int64_t bytes) {
        char* memory = static_cast<char*>(malloc(static_cast<size_t>(bytes)));
        for (int64_t i = 0; i < bytes; ++i) memory[i] = static_cast<char>(i * 37 % 120);
        return memory;
    }

    int run(float* time_ms = nullptr) {
        return dispatcher_run_aquant_gemm(a, aq, b, c, m, n, k, lda, ldaq, ldb, n, groups(k), 1, time_ms);
    }
};

void* call_often(void* operands) {
    for (int i = 0; i < 20; ++i) static_cast<Operands*>(operands)->run();
    return nullptr;
}

}  // namespace

int main() {
    const int64_t sizes[][3] = {{1, 1, 1}, {1, 40, 129}, {1, 3, 13}, {7, 33, 255}, {33, 5, 300}, {70, 300, 257}, {0, 3, 4}, {3, 4, 0}};
    for (const auto& s : sizes) {
        Operands good(s[0], s[1], s[2]);
        EXPECT(good.run() == 0);
    }
    Operands p(70, 200, 600);
    float time_ms = 0;
    EXPECT(p.run(&time_ms) == 0 && time_ms > 0);
    EXPECT(dispatcher_run_aquant_gemm(nullptr, p.aq, p.b, p.c, 70, 200, 600, p.lda, p.ldaq, p.ldb, 200, 5, 1, nullptr) == -1);
    EXPECT(dispatcher_run_aquant_gemm(p.a, p.aq, p.b, p.c, 70, 200, 600, p.lda, p.ldaq, p.ldb, 200, 4, 1, nullptr) == -1);
    EXPECT(dispatcher_run_aquant_gemm(p.a, p.aq, p.b, p.c, 70, 200, 600, p.lda, p.ldaq, p.ldb, 200, 5, 3, nullptr) == -2);
    EXPECT(gemmill_gemm_aquant(p.a, p.aq, p.b, p.c, 70, 200, 600, 1, 1, 1, 1, nullptr, 0, nullptr) == -1);
    EXPECT(gemmill_workspace_bytes(INT64_MAX, INT64_MAX, 2) == -1);

    setenv("GEMMILL_NUM_THREADS", "none", 1);
    dispatcher_cleanup();
    EXPECT(p.run() == -1);
    unsetenv("GEMMILL_NUM_THREADS");

    Operands q(60, 210, 500);
    pthread_t threads[3];
    Operands* work[3] = {&q, new Operands(5, 9, 200), new Operands(90, 150, 300)};
    for (int i = 0; i < 3; ++i) pthread_create(&threads[i], nullptr, call_often, work[i]);
    dispatcher_cleanup();
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    delete work[1];
    delete work[2];
    return 0; /* the pool is still open: the library's destructor has to close it */
}
