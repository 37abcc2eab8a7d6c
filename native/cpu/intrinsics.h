/* The x86 intrinsics. GCC 12 takes their deliberately undefined pass-through operands for a mistake (PR 105593). */
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
