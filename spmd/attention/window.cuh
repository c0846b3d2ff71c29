// What windows leave of the scores: tiles of kernels divide 128.
#include "spmd.cuh"

// first_key is the first that the 128 queries see of which this is one, end_of_queries the first query that does not see
// a key any more, nor those behind it. Without a window, 0, all earlier keys are seen.
SPMD_FN int first_key(int query, int window) { return window ? max(0, query / 128 * 128 - window) : 0; }
SPMD_FN int end_of_queries(int key, int window, int T) { return window ? min(T, key / 128 * 128 + 128 + window) : T; }
