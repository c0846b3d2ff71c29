// The scores that windows leave: tiles of kernels divide 128.
#include "spmd.cuh"

// first_key is the first key that a query and the other queries of its 128 see. end_of_queries is
// the first query that does not see a key any more, nor those behind it. Without a window, 0, all
// earlier keys are seen.
SPMD_FN int first_key(int query, int window) { return window ? max(0, query / 128 * 128 - window) : 0; }
SPMD_FN int end_of_queries(int key, int window, int T) { return window ? min(T, key / 128 * 128 + 128 + window) : T; }
