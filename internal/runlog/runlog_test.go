package runlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write puts a log of n steps into the folder of a run.
func write(t *testing.T, dir string, n int) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i := 1; i <= n; i++ {
		val := ""
		if i%10 == 0 {
			val = fmt.Sprintf(`,"val_loss":%g`, 6/float64(i))
		}
		fmt.Fprintf(&b, `{"step":%d,"loss":%g,"lr":0.001,"tok_s":1000%s}`+"\n", i, 5/float64(i), val)
	}
	b.WriteString(`{"summary":true,"steps":3}` + "\n")
	if err := os.WriteFile(filepath.Join(dir, Log), []byte(b.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	r, err := Read(write(t, dir, 20))
	if err != nil || r.Name != "a" || len(r.Steps) != 20 || *r.Steps[4].Loss != 1 || r.Steps[4].ValLoss != nil ||
		*r.Steps[9].ValLoss != 0.6 {
		t.Errorf("%v, %+v", err, r)
	}
	// The run goes on from step 10, with a step that was left out.
	f, err := os.OpenFile(filepath.Join(dir, Log), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(f, `{"step":11,"loss":7,"lr":0.001,"tok_s":1}`)
	fmt.Fprintln(f, `{"step":12,"skipped":true,"loss":null,"lr":0.001,"tok_s":1}`)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r, err = Read(filepath.Join(dir, Log))
	if err != nil || len(r.Steps) != 12 || *r.Steps[10].Loss != 7 || r.Steps[11].Loss != nil {
		t.Errorf("%v, %d steps", err, len(r.Steps))
	}
	// A last line that is not finished is one that the run is writing; one in the middle was left
	// by a process that was killed.
	for _, half := range []string{"{", `{"st`, `{"step":`, `{"step":4,"loss":1.`, `{"step":4,"loss":1.5`} {
		file := filepath.Join(t.TempDir(), "log")
		for _, text := range []string{
			"{\"step\":1}\n{\"step\":2}\n" + half, "{\"step\":1}\n" + half + "\n{\"step\":2}\n",
		} {
			if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
			if r, err := Read(file); err != nil || len(r.Steps) != 2 {
				t.Errorf("%q: %d steps, %v", text, len(r.Steps), err)
			}
		}
	}
	for text, want := range map[string]string{
		"": "no step of a run", "{}\n": "no step of a run", "{\"step\":1}\n{]}": "line 2 is not JSON",
		"{\"step\":1}\nx": "line 2 is not JSON",
	} {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
