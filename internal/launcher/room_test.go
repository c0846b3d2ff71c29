package launcher

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckTemp(t *testing.T) {
	for _, tc := range []struct {
		free   int64
		cannot error
		limit  int64
		want   string
	}{
		{1 << 40, nil, -1, ""}, {9 << 20, nil, 4200 << 10, ""},
		{3 << 19, nil, -1, "TMPDIR: /t has 1.5 MiB free, and Open MPI needs 9 to start"},
		{0, fs.ErrPermission, -1, "TMPDIR: Open MPI cannot write to /t (permission denied)"},
		{1 << 40, nil, 100 << 10, "files may have 100 KiB (ulimit -f), and Open MPI needs 4200 to start"},
		{1 << 40, nil, 0, "files may have 0 KiB (ulimit -f), and Open MPI needs 4200 to start"},
	} {
		what, do := CheckTemp("/t", tc.free, tc.cannot, tc.limit)
		if !strings.HasPrefix(what, tc.want) || (what == "") != (tc.want == "") || (do == "") != (tc.want == "") {
			t.Errorf("%+v: %q, %q", tc, what, do)
		}
	}
}

func TestCheckName(t *testing.T) {
	long := strings.Repeat("n", mostName)
	for host, ok := range map[string]bool{
		"": true, "n1": true, long: true, long + ".example.org": true, long + "n": false, long + "n.org": false,
		"a-1": true, "A.b_c": true, "a_b": false, "(none)": false, "ünï": false, "a b": false, " ": false, "a,b": false,
	} {
		if what, do := CheckName(host); (what == "") != ok || (do == "") != ok {
			t.Errorf("%s: %q, %q", host, what, do)
		}
	}
}

func TestTemp(t *testing.T) {
	env := map[string]string{"TMP": "/c", "TMPDIR": "/a", "TEMP": "/b"}
	if got := Temp(func(k string) string { return env[k] }); got != "/a" {
		t.Error(got)
	}
	if got := Temp(func(string) string { return "" }); got != "/tmp" {
		t.Error(got)
	}
	free, err := TempFree(t.TempDir())
	later, e := TempFree(filepath.Join(t.TempDir(), "made", "later"))
	if err != nil || e != nil || free <= 0 || later <= 0 {
		t.Errorf("%d, %v; %d, %v", free, err, later, e)
	}
	if _, err := TempFree("/dev/null/x"); err == nil {
		t.Error("files can be made in /dev/null")
	}
}
