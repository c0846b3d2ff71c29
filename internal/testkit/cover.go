package testkit

import "flag"

// CoverDir returns the folder for the counters of a test program that measures its coverage, or "".
func CoverDir() string {
	if f := flag.Lookup("test.gocoverdir"); f != nil {
		return f.Value.String()
	}
	return ""
}

// CoverFlags returns the flags that make a test process of this program add its coverage. Package
// testing would leave it in a folder of its own.
func CoverFlags() []string {
	if dir := CoverDir(); dir != "" {
		return []string{"-test.gocoverdir=" + dir}
	}
	return nil
}
