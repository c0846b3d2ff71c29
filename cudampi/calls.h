// The part of this package that the C code of spmd/internal/shm shares. calls has the calls that it
// makes of MPI. A group of messages makes those of carrier. go build does not notice there that
// this file has changed: touch its collective.go too, or build with -a.
#ifndef LOCKSTEP_CALLS_H
#define LOCKSTEP_CALLS_H

#include <stdint.h>

// content is what a message has: bytes, and elements of a type.
static inline int64_t content(int64_t bytes, int t) { return bytes << 8 | t; }

// outcome is MPI's code of a call. got is the content of the message received, and index the
// message of a group that it is about.
struct outcome { int code; int index; int64_t got; };

// calls is MPI for other C code. comm is an MPI_Comm in a word, as handle_word makes it. Messages
// are the application's.
struct calls {
    int (*progress)(uintptr_t comm); // lets MPI deliver messages
    int (*send)(uintptr_t comm, uintptr_t from, int64_t n, int t, int to);
    struct outcome (*recv)(uintptr_t comm, uintptr_t to, int64_t n, int t, int from);
};

enum { WAITS, CARRIED, LEFT_TO_MPI }; // what has become of a message

// carrier takes the messages of a group in one direction between two ranks, in their order, instead
// of MPI.
struct carrier {
    // step goes on with a message of that content, and returns its state. It sets got to the
    // content received.
    int (*step)(struct carrier *, uintptr_t buf, int64_t has, int recv, int64_t *got);
    // idle is called between two looks. looks is how many there were. It returns a code of MPI.
    int (*idle)(struct carrier *, uint64_t looks);
    uint64_t held; // run_group's: the last pass in which a message waited here; those behind it wait too
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
