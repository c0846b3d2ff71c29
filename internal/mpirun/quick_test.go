package mpirun

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// Each test that starts jobs in make test is there; the others are skipped, in make test alone.
func TestQuick(t *testing.T) {
	missing := slices.Clone(quick)
	files, err := filepath.Glob("../../*/*_test.go")
	for _, deeper := range []string{"*/*/", "*/*/*/"} {
		more, e := filepath.Glob("../../" + deeper + "*_test.go")
		if files = append(files, more...); err != nil || e != nil {
			t.Fatal(err, e)
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		testkit.Must(t, err)
		missing = slices.DeleteFunc(missing, func(q string) bool {
			dir, test, _ := strings.Cut(q, ".")
			return dir == filepath.Base(filepath.Dir(file)) && strings.Contains(string(text), "func "+test)
		})
	}
	if len(missing) > 0 {
		t.Errorf("no tests %v", missing)
	}
	for value, want := range map[string]bool{"": false, "all": false, "quick": true} {
		t.Setenv("LOCKSTEP_TESTS", value)
		skipped := true
		t.Run(value, func(t *testing.T) {
			defer func() { skipped = t.Skipped() }()
			Job(t)
		})
		if skipped != want {
			t.Errorf("LOCKSTEP_TESTS=%s: skipped %v", value, skipped)
		}
	}
}
