// The loops on the host of a forward pass that goes on from cached keys and values.
#ifndef TRAIN_DECODE_H
#define TRAIN_DECODE_H

// Rows (i,h) from lo to hi of n·nh: attention of the query of token place+i, head h, in
// qkv(n,3,nh,hs) to keys and values(nh,seq,hs) 0 to place+i; out is (n,nh,hs). scores is
// scratch of place+n.
void train_decode_attend(float *out, float *scores, const float *qkv, const float *keys, const float *values, long place, long nh, long hs,
                         long seq, long lo, long hi);

#endif
