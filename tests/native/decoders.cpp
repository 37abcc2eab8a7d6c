// Prints what a decoder makes of all 256 codes: one line a format, 256 float32 bit patterns.
#include DECODER

#include <stdio.h>

using namespace gemmill;

template <typename Format>
void print(const char* name) {
    uint8_t codes[256];
    alignas(64) Element out[256];
    for (int i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
    Decoder<Format>::run(out, codes, 256);
    printf("%s", name);
    for (Element value : out) {
        const uint32_t bits = sizeof value == 2 ? static_cast<uint32_t>(bits_as<uint16_t>(static_cast<uint16_t>(value))) << 16
                                                : bits_as<uint32_t>(static_cast<float>(value));
        printf(" %08x", bits);
    }
    printf("\n");
}

template <typename Format>
void print_scalar(const char* name) {
    printf("%s", name);
    for (int i = 0; i < 256; ++i) printf(" %08x", bits_as<uint32_t>(fp8_to_float<Format>(static_cast<uint8_t>(i))));
    printf("\n");
}

int main() {
    print<E4M3fn>("float8_e4m3fn");
    print<E5M2>("float8_e5m2");
#ifdef FNUZ
    print<E4M3fnuz>("float8_e4m3fnuz");
    print<E5M2fnuz>("float8_e5m2fnuz");
#endif
    print_scalar<E4M3fn>("float8_e4m3fn");
    print_scalar<E5M2>("float8_e5m2");
    print_scalar<E4M3fnuz>("float8_e4m3fnuz");
    print_scalar<E5M2fnuz>("float8_e5m2fnuz");
}
