package input

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// On a machine without Go's source the error says what to give instead.
func TestNoGoTree(t *testing.T) {
	places := goPlaces
	defer func() { goPlaces = places }()
	goPlaces = []string{filepath.Join(t.TempDir(), "go*")}
	t.Setenv("GOROOT", "")
	t.Setenv("PATH", "")
	_, err := Resolve(nil)
	if !errors.As(err, new(Error)) || !strings.Contains(err.Error(), "give --data") {
		t.Errorf("error %v, want bad input that asks for --data", err)
	}
}
