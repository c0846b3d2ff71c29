package sweep

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// checkSVG checks that an SVG file is well formed, and returns its text.
func checkSVG(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	elements := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(string(data))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if e, ok := token.(xml.StartElement); ok {
			elements[e.Name.Local]++
		}
	}
	if elements["svg"] != 1 || elements["path"] == 0 || elements["text"] == 0 || strings.Contains(string(data), "NaN") {
		t.Errorf("%s has %v", file, elements)
	}
	return string(data)
}
