// The loops of stencil.c for one type: it defines T, and NAME(x), which is x with the type's suffix, and includes this.

CLONES void NAME(stencil_step)(T *out, const T *in, T centre, T beside, const struct box *b, long lo, long hi) {
    long rows = b->hi[1] - b->lo[1], width = b->hi[2] - b->lo[2];
    for (long i = lo; i < hi; i++) {
        long long z = b->lo[0] + i / rows, y = b->lo[1] + i % rows;
        long long at = b->origin + z * b->plane + y * b->pitch + b->lo[2];
        const T *restrict u = in + at, *restrict below = u - b->plane, *restrict above = u + b->plane;
        T *restrict o = out + at - (b->origin + b->lo[0] * b->plane); // the inside alone
        if (b->dims == 2) {
#pragma omp simd
            for (long x = 0; x < width; x++)
                o[x] = centre * u[x] + beside * ((below[x] + above[x]) + (u[x - 1] + u[x + 1]));
        } else {
            const T *restrict south = u - b->pitch, *restrict north = u + b->pitch;
#pragma omp simd
            for (long x = 0; x < width; x++)
                o[x] = centre * u[x] + beside * (((below[x] + above[x]) + (south[x] + north[x])) + (u[x - 1] + u[x + 1]));
        }
    }
}

void NAME(stencil_frame)(T *out, const T *in, T *sent, const T *received, T centre, T beside, const struct box *b,
                         int only_pack, long lo, long hi) {
    int side = 0;
    for (long long k = lo; k < hi; k++) {
        while (k >= b->first[side + 1]) side++;
        long long i = k - b->first[side], c[3];
        int axis = side / 2, minor = axis == 2 ? 1 : 2, major = axis == 0 ? 1 : 0;
        c[axis] = side % 2 ? b->n[axis] - 1 : 0;
        c[minor] = i % b->n[minor];
        c[major] = i / b->n[minor];
        long long at = b->origin + c[0] * b->plane + c[1] * b->pitch + c[2];
        T u = in[at];
        if (!only_pack) {
            T sum = in[at - b->plane] + in[at + b->plane];
            for (int a = b->dims == 2 ? 2 : 1; a < 3; a++) {
                long long far = a == 1 ? b->pitch : 1, on = c[0] * b->n[3 - a] + c[3 - a]; // its place on a face of axis a
                T low = c[a] == 0 && b->face[2 * a] >= 0 ? received[b->face[2 * a] + on] : in[at - far];
                T high = c[a] == b->n[a] - 1 && b->face[2 * a + 1] >= 0 ? received[b->face[2 * a + 1] + on] : in[at + far];
                sum = sum + (low + high);
            }
            u = centre * u + beside * sum;
            int before = 0; // another face has the cell, and writes it
            for (int s = 0; s < side; s++)
                before |= b->face[s] >= 0 && c[s / 2] == (s % 2 ? b->n[s / 2] - 1 : 0);
            if (!before) out[at] = u;
        }
        if (axis > 0) sent[b->face[side] + i] = u;
    }
}
