package runfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// save writes the files of a checkpoint that Checkpoints reads.
func save(t *testing.T, folder, index string) {
	t.Helper()
	must(t, os.MkdirAll(folder, 0o777))
	must(t, os.WriteFile(filepath.Join(folder, CheckpointIndex), []byte(index), 0o666))
	must(t, os.WriteFile(filepath.Join(folder, CompleteMarker), nil, 0o666))
}

// The newest is the one that was saved last, whatever its step and the time of its files.
// Incomplete checkpoints, and other folders, are left out.
func TestCheckpoints(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, serial := range map[string]int{
		"step-00000030": 4, "step-00000010": 6, "step-00000020": 5, "elsewhere": 9, "step-00000040.old": 11,
		"step-": 12,
	} {
		save(t, at(name), fmt.Sprintf(
			`{"format":"x","step":1,"serial":%d,"chunk_bytes":1,"arrays":[{"name":"serial"}]}`, serial))
	}
	must(t, os.Symlink("elsewhere", at("step-00000005")))
	must(t, os.Symlink("nowhere", at("step-00000006")))
	save(t, at("step-00000007"), `{"format":"x","ser`)
	save(t, at("step-00000008"), `{"serial":"many"}`)
	save(t, at("step-00000009"), `{"serial":20}`)
	must(t, os.Remove(filepath.Join(at("step-00000009"), CompleteMarker)))
	must(t, os.WriteFile(at("step-00000011"), nil, 0o666))
	want := []Checkpoint{{at("step-00000005"), 5, 9}, {at("step-00000010"), 10, 6}, {at("step-00000020"), 20, 5},
		{at("step-00000030"), 30, 4}}
	if got, err := Checkpoints(dir); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := Checkpoints(at("none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
