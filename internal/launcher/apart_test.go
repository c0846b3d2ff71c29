package launcher

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"lockstep/internal/testkit"
)

// A rank is apart if no mpirun is above it, or if its numbers of processes or users are others.
func TestApart(t *testing.T) {
	tree := func(self string, parents map[int]string) string {
		dir := t.TempDir()
		link := func(to string, name ...string) {
			at := filepath.Join(append([]string{dir}, name...)...)
			testkit.Must(t, os.MkdirAll(filepath.Dir(at), 0o777))
			testkit.Must(t, os.Symlink(to, at))
		}
		link(self, "self")
		link("user:[1]", self, "ns", "user")
		for pid, stat := range parents {
			link("user:[1]", strconv.Itoa(pid), "ns", "user")
			testkit.Must(t, os.WriteFile(filepath.Join(dir, strconv.Itoa(pid), "stat"), []byte(stat), 0o666))
		}
		return dir
	}
	for name, tc := range map[string]struct {
		proc string
		want Apart
	}{
		"mpirun is above": {tree("9", map[int]string{8: "8 (sh) S 7 8 8", 7: "7 (mpirun.openmpi) S 1 7 7"}),
			Apart{}},
		"on another host":      {tree("9", map[int]string{8: "8 (orted) S 1 8 8"}), Apart{}},
		"a shell is the first": {tree("9", map[int]string{8: "8 (sh (1)) S 0 8 8"}), Apart{Process: true}},
		"proc is another's":    {tree("109", nil), Apart{Process: true}},
		"hidden":               {tree("9", nil), Apart{}},
		"no proc":              {t.TempDir(), Apart{}},
	} {
		if got := findApart(tc.proc, 9, 8); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
	proc := tree("9", map[int]string{8: "8 (mpirun) S 1 8 8"})
	testkit.Must(t, os.Remove(filepath.Join(proc, "8/ns/user")))
	testkit.Must(t, os.Symlink("user:[2]", filepath.Join(proc, "8/ns/user")))
	if got := findApart(proc, 9, 8); got != (Apart{User: true}) {
		t.Errorf("another user namespace: %+v", got)
	}
}

func TestSetApart(t *testing.T) {
	for _, name := range []string{"OMPI_MCA_btl", "OMPI_MCA_smsc", "OMPI_MCA_btl_vader_single_copy_mechanism"} {
		t.Setenv(name, "")
	}
	for _, tc := range []struct {
		launcher string
		a        Apart
		want     string
	}{
		{"openmpi4", Apart{}, ""}, {"slurm-pmix", Apart{true, true}, ""},
		{"openmpi4", Apart{User: true}, "OMPI_MCA_btl_vader_single_copy_mechanism=none"},
		{"openmpi5", Apart{User: true}, "OMPI_MCA_smsc=^cma"},
		// it is already set
		{"openmpi4", Apart{true, true}, "OMPI_MCA_btl=^vader"}, {"openmpi5", Apart{Process: true}, ""},
	} {
		if got := (Job{Name: tc.launcher}).SetApart(tc.a); got != tc.want {
			t.Errorf("%s, %+v: %q, want %q", tc.launcher, tc.a, got, tc.want)
		}
	}
}
