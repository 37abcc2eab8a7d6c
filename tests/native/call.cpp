// Multiplies problems from standard input and writes each C to standard output. KERNEL is the generated source.
//
// A problem: M N K stride_A stride_AQ stride_B QK_A, bytes of A, AQ, B and C (int64), then A, AQ and B.
#include KERNEL

#include <stdio.h>

namespace {

char* take(int64_t bytes) {
    char* memory = static_cast<char*>(malloc(static_cast<size_t>(bytes) + 1));
    if (fread(memory, 1, static_cast<size_t>(bytes), stdin) != static_cast<size_t>(bytes)) abort();
    return memory;
}

}  // namespace

int main() {
    int64_t h[11];
    while (fread(h, sizeof h, 1, stdin) == 1) {
        char *a = take(h[7]), *aq = take(h[8]), *b = take(h[9]);
        char* c = static_cast<char*>(malloc(static_cast<size_t>(h[10])));
        if (dispatcher_run_aquant_gemm(a, aq, b, c, h[0], h[1], h[2], h[3], h[4], h[5], h[1], h[6], 1, nullptr)) {
            fprintf(stderr, "%s\n", gemmill_last_error());
            return 1;
        }
        fwrite(c, 1, static_cast<size_t>(h[10]), stdout);
        free(a);
        free(aq);
        free(b);
        free(c);
    }
    return 0;
}
