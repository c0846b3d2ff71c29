package main

import "testing"

// The counts of all processes add up, in the words of each tool.
func TestSanitizerCount(t *testing.T) {
	for _, c := range []struct {
		out  string
		want int // -1: an error
	}{
		{"========= COMPUTE-SANITIZER\nsaid\n========= ERROR SUMMARY: 0 errors\n", 0},
		{"========= ERROR SUMMARY: 1 error\n========= ERROR SUMMARY: 110592 errors\n" +
			"========= ERROR SUMMARY: 110491 errors were not printed. Use --print-limit option to adjust the number " +
			"of printed errors\n", 110593},
		{"========= RACECHECK SUMMARY: 98 hazards displayed (98 errors, 0 warnings)\n", 98},
		{"========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n", 1},
		{"========= Error: Race reported between Read access at nvjet_sm90_tst_64x16_TNT+0xb00\n" +
			"=========     and Write access at nvjet_sm90_tst_64x16_TNT+0x2fb0 [384 hazards]\n" +
			"========= Error: Race reported between Read access at layernorm_backward+0x10\n" +
			"=========     and Write access at layernorm_backward+0x80 [2 hazards]\n" +
			"========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n", 1},
		{"========= COMPUTE-SANITIZER\nDevice not supported\n", -1},
	} {
		found, err := countOf(c.out)
		if err != nil {
			found = -1
		}
		if found != c.want {
			t.Errorf("%q: %d, %v, want %d", c.out, found, err, c.want)
		}
	}
}
