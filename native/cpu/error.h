/* The text behind gemmill_last_error(): one buffer a thread, written by the call that fails.
 *
 * No printf here: a message must be writable on a CPU that lacks the kernel's instructions, and variadic
 * functions save vector registers.
 */
#pragma once

#include "abi.h"
#include "cpu/base.h"

namespace gemmill {

struct ErrorText {
    char text[512];
    size_t length;
};

inline thread_local ErrorText t_error = {};

/* Appends words and integers to this thread's message, cut silently at the buffer's end. */
class Message {
  public:
    GEMMILL_BASELINE Message() {
        t_error.length = 0;
        t_error.text[0] = 0;
    }

    GEMMILL_BASELINE Message& operator<<(const char* words) {
        for (; *words; ++words) put(*words);
        return *this;
    }

    GEMMILL_BASELINE Message& operator<<(int64_t value) {
        char digits[20];
        int count = 0;
        uint64_t rest = value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
        do {
            digits[count++] = static_cast<char>('0' + rest % 10);
            rest /= 10;
        } while (rest);
        if (value < 0) put('-');
        while (count) put(digits[--count]);
        return *this;
    }

    GEMMILL_BASELINE int bad_argument() const { return GEMMILL_BAD_ARGUMENT; }
    GEMMILL_BASELINE int unsupported() const { return GEMMILL_UNSUPPORTED; }
    GEMMILL_BASELINE int device_error() const { return GEMMILL_DEVICE_ERROR; }

  private:
    GEMMILL_BASELINE void put(char c) {
        if (t_error.length + 1 >= sizeof t_error.text) return;
        t_error.text[t_error.length++] = c;
        t_error.text[t_error.length] = 0;
    }
};

}  // namespace gemmill
