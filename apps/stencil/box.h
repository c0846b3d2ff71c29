// What the kernels know of a rank's cells: stencil.cu and stencil.c share it, and box in box.go has the same layout.
// Axes are 0, 1 and 2: planes, rows of a plane, and columns. A grid of two dimensions has one row in each plane, and
// nothing beside that. Sides are the two ends of axis 0, of axis 1 and of axis 2, the lower one first.
#ifndef STENCIL_BOX_H
#define STENCIL_BOX_H

struct box {
	long long dims;                 // of the grid: 2, 3
	long long n[3];                 // cells along each axis
	long long plane, pitch, origin; // elements from plane to plane, from row to row, and before the first cell
	long long lo[3], hi[3];         // the inside: cells whose new values need nothing of another rank
	long long face[6];              // by side: where in the packed faces its cells lie; -1 where no rank is behind it
	long long first[7];             // by side: the number of cells on the faces before it; first[6] is that of all
};

#endif
