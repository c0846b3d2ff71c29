// What this package and C code of internal/shm have in common: what that asks of MPI, and what a group of messages asks of
// it. go build does not notice there that this file has changed: touch its sys.go, too, or build with -a.
#ifndef LOCKSTEP_CALLS_H
#define LOCKSTEP_CALLS_H

#include <stdint.h>

// outcome is the code of a call, the bytes of the message received, and the message of a group that it is about.
struct outcome { int code; int index; int64_t got; };

// calls is MPI for other C code. comm is an MPI_Comm in a word, as handle_word makes it. Messages are the application's.
struct calls {
    int (*progress)(uintptr_t comm); // lets MPI deliver messages
    int (*send)(uintptr_t comm, uintptr_t from, int64_t n, int t, int to);
    struct outcome (*recv)(uintptr_t comm, uintptr_t to, int64_t n, int t, int from);
};

enum { WAITS, CARRIED, LEFT_TO_MPI }; // what has become of a message

// carrier is what takes the messages of a group in one direction between two ranks, in their order, instead of MPI.
struct carrier {
    // step takes the message on, of that many bytes, and returns what has become of it. It sets got to the bytes that came.
    int (*step)(struct carrier *, uintptr_t buf, int64_t bytes, int recv, int64_t *got);
    // idle is what to do between two looks, of which there were so many. It returns a code of MPI.
    int (*idle)(struct carrier *, uint64_t looks);
    uint64_t held; // run_group's: the pass in which a message waits here, which no other may overtake
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
