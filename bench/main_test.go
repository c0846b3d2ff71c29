package main

import "testing"

// A group that failed keeps the rows that were not measured anew; the groups stay
// in their order.
func TestMerge(t *testing.T) {
	old := []row{{Bench: "allreduce", What: "a"}, {Bench: "reduce", What: "b"}, {Bench: "reduce", What: "c"}, {Bench: "train", What: "d"}}
	for _, tc := range []struct {
		name     string
		measured []row
		whole    bool
		want     string
	}{
		{"reduce", []row{{Bench: "reduce", What: "c", Ours: 1}}, true, "a0 c1 d0"},
		{"reduce", []row{{Bench: "reduce", What: "c", Ours: 1}}, false, "a0 b0 c1 d0"},
		{"reduce", nil, false, "a0 b0 c0 d0"},
		{"pingpong", []row{{Bench: "pingpong", What: "e", Ours: 1}}, true, "a0 e1 b0 c0 d0"},
	} {
		got := ""
		for _, r := range merge(old, tc.measured, tc.name, tc.whole) {
			got += " " + r.What + string('0'+rune(r.Ours))
		}
		if got != " "+tc.want {
			t.Errorf("%s, whole %v: rows%s, want %s", tc.name, tc.whole, got, tc.want)
		}
	}
}

func TestCommand(t *testing.T) {
	b := bench{rounds: defaultRounds, llmc: "../llm.c/train_gpt2"}
	if got, want := b.command("train"), "go run ./bench --only train --llmc ../llm.c/train_gpt2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	b.rounds = 9
	if got, want := b.command("reduce"), "go run ./bench --only reduce --rounds 9"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWorstMeasured(t *testing.T) {
	worst, err := worstMeasured("1e-7\ta loss\n3e-7\ta loss\n2e-7\ta loss\n5\tb\n")
	if err != nil || worst["a loss"] != 3e-7 || worst["b"] != 5 {
		t.Errorf("%v, %v", worst, err)
	}
	for _, bad := range []string{"NaN\ta\n", "1 a\n", "x\ta\n"} {
		if _, err := worstMeasured(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestCheckRank(t *testing.T) {
	for _, tc := range []struct {
		what  string
		sizes []int
		ranks int
		ok    bool
	}{
		{"allreduce", []int{8, 1 << 20}, 3, true},
		{"pingpong", []int{8}, 2, true},
		{"pingpong", []int{8}, 3, false},
		{"", []int{8}, 2, false},
		{"allreduce", []int{8, 0}, 2, false},
		{"allreduce", []int{4}, 2, false},
		{"allreduce", []int{12}, 2, false},
		{"allreduce", []int{-8}, 2, false},
	} {
		if err := checkRank(tc.what, tc.sizes, tc.ranks); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
