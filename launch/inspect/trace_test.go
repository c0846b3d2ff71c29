package inspect

import (
	"bytes"
	"compress/gzip"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// sample is a trace of three ranks. Rank 2 comes last to an AllReduce, from a kernel, and rank 0
// sends late, from code of its own.
const sample = `{"displayTimeUnit":"ns","otherData":{"ranks":3,"dropped_events":{"1":7}},"traceEvents":[
{"ph":"M","pid":0,"tid":0,"ts":0.000,"name":"process_name","args":{"name":"rank 0"}},
{"ph":"X","pid":0,"tid":0,"ts":1000.000,"dur":5100.000,"name":"AllReduce","cat":"collective","args":{"bytes":4096,"comm":"world","seq":3}},
{"ph":"X","pid":1,"tid":0,"ts":3000.000,"dur":3100.000,"name":"AllReduce","cat":"collective","args":{"bytes":4096,"comm":"world","seq":3}},
{"ph":"X","pid":2,"tid":0,"ts":6000.000,"dur":100.000,"name":"AllReduce","cat":"collective","args":{"bytes":4096,"comm":"world","seq":3}},
{"ph":"X","pid":2,"tid":100,"ts":500.000,"dur":5400.000,"name":"slow_kernel","cat":"compute"},
{"ph":"X","pid":1,"tid":100,"ts":100.000,"dur":90.000,"name":"slow_kernel","cat":"compute"},
{"ph":"X","pid":1,"tid":100,"ts":200.000,"dur":3.000,"name":"Copy","cat":"copy","args":{"bytes":64,"replays":8}},
{"ph":"X","pid":1,"tid":100,"ts":210.000,"dur":5.000,"name":"Copy","cat":"copy","args":{"bytes":64}},
{"ph":"X","pid":0,"tid":100,"ts":210.000,"dur":28.000,"name":"Copy","cat":"copy","args":{"bytes":64}},
{"ph":"X","pid":2,"tid":0,"ts":0.000,"dur":9000.000,"name":"all","cat":"region"},
{"ph":"X","pid":2,"tid":0,"ts":400.000,"dur":6000.000,"name":"step","cat":"region"},
{"ph":"X","pid":1,"tid":0,"ts":7000.000,"dur":900.000,"name":"Recv","cat":"message","args":{"bytes":8,"comm":"world/1:0","rank":0,"from":1,"received":1}},
{"ph":"X","pid":0,"tid":0,"ts":7500.000,"dur":10.000,"name":"Send","cat":"message","args":{"bytes":8,"comm":"world/1:0","rank":1,"to":0,"sent":1}},
{"ph":"X","pid":1,"tid":0,"ts":8000.000,"dur":900.000,"name":"Recv","cat":"message","args":{"bytes":8,"comm":"world/1:0","rank":0,"from":1,"received":2}}
]}
`

const want = `rank 1: 7 events were dropped, and are not looked at
worked   rank  count  longest  in
5.4 ms   2     1      5.4 ms   slow_kernel
29 us    1     9      5 us     Copy

waited  rank  in                                           at          for rank  which was in
5 ms    0     AllReduce of 4096 bytes on world, number 3   0.001000 s  2         slow_kernel, in region step
3 ms    1     AllReduce of 4096 bytes on world, number 3   0.003000 s  2         slow_kernel, in region step
500 us  1     Recv of 8 bytes on world/1:0                 0.007000 s  0         its program

rank  waited for others  others waited for it
0     5 ms               500 us
1     3.5 ms             0 us
2     0 us               8 ms
`

func shown(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := TraceCommand()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.Execute()
	return out.String(), err
}

func TestTrace(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(sample)); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, z.Close())
	words := func(s string) string {
		var lines []string
		for line := range strings.Lines(s) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n")
	}
	for name, text := range map[string]string{"t.json": sample, "t.json.gz": packed.String()} {
		if got, err := shown(t, write(t, name, text)); err != nil || words(got) != words(want) {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	if got, err := shown(t, "--waits", "1", write(t, "t.json", sample)); err != nil ||
		strings.Count(got, "AllReduce") != 1 {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err := shown(t, "--work", "1", write(t, "t.json", sample)); err != nil || strings.Contains(got, "Copy") ||
		!strings.Contains(got, "slow_kernel\n\nwaited") {
		t.Errorf("%v\n%s", err, got)
	}
	none := `{"otherData":{"ranks":2},"traceEvents":[]}`
	if got, err := shown(t, write(t, "t.json", none)); err != nil || got != "no rank waited for another, of 2\n" {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "trace takes one file"},
		{[]string{"a", "b"}, "trace takes one file"},
		{[]string{filepath.Join(t.TempDir(), "none.json")}, "no such file"},
		{[]string{write(t, "t.json", "hello")}, "is no file that a program has written with --trace"},
		{[]string{write(t, "t.json", "{}")}, "is no file that a program has written with --trace"},
		{[]string{write(t, "t.json", sample[:300])}, "is no file that a program has written with --trace"},
		{[]string{write(t, "t.gz", "\x1f\x8bxx")}, "t.gz: "},
	} {
		_, err := shown(t, tc.args...)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", tc.args, err, tc.want)
		}
	}
}
