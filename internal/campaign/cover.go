package campaign

import "flag"

// CoverDir is the folder for the counters of a test program that measures its
// coverage, "" where it does not.
func CoverDir() string {
	if f := flag.Lookup("test.gocoverdir"); f != nil {
		return f.Value.String()
	}
	return ""
}

// CoverFlags are the flags with which a process of this program that runs tests adds what it
// covers: package testing would leave that in a folder of its own.
func CoverFlags() []string {
	if dir := CoverDir(); dir != "" {
		return []string{"-test.gocoverdir=" + dir}
	}
	return nil
}
