package run

import "testing"

func TestPeakFlops(t *testing.T) {
	for _, tc := range []struct {
		device, dtype string
		want          float64
	}{
		{"NVIDIA H200", "bfloat16", 989.4e12}, {"NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12},
		{"NVIDIA H100 PCIe", "bfloat16", 756e12},
		{"NVIDIA A100-SXM4-80GB", "bfloat16", 312e12}, {"NVIDIA L40S", "bfloat16", 362e12},
		{"NVIDIA L4", "bfloat16", 121e12},
		{"NVIDIA GH200 480GB", "bfloat16", 989.4e12}, {"NVIDIA A1000", "bfloat16", 0}, {"NVIDIA H200", "float32", 0},
		{"host", "bfloat16", 0},
	} {
		if got := peakFlops(tc.device, tc.dtype); got != tc.want {
			t.Errorf("%s, %s: %g, want %g", tc.device, tc.dtype, got, tc.want)
		}
	}
}
