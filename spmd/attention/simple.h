// The loops of causal self-attention on the host, float32 and row-major. They take the heads [lo,
// hi) of the b·nh heads of qkv (b,t,3,nh,hs), out (b,t,nh,hs) and lse (b,nh,t). A value never
// depends on how the heads are split. They return 0, or another number if there is no memory.
// window is as in Shape.
#ifndef ATTENTION_SIMPLE_H
#define ATTENTION_SIMPLE_H

int attention_forward(float *out, float *lse, const float *qkv, long t, long nh, long hs, long window,
    long lo, long hi);
// dqkv from dout and the results of attention_forward.
int attention_backward(float *dqkv, const float *dout, const float *out, const float *lse, const float *qkv,
    long t, long nh, long hs, long window, long lo, long hi);

#endif
