// Package version says which version of Lockstep this is, and of what it was built.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Number is the semantic version. CHANGELOG.md says what has changed with each.
const Number = "0.1.0"

// Text is the version of this program on one line: Lockstep's, the commit where the build has noted it, Go's, the system.
func Text() string {
	commit := ""
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Path == "lockstep" { // else the commit is the program's
		commit = commitOf(info.Settings)
	}
	return fmt.Sprintf("Lockstep %s%s, %s, %s/%s", Number, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// commitOf returns " (abcdef012345)", with "changed" behind it where the checkout was; "" where none was noted.
func commitOf(settings []debug.BuildSetting) string {
	var revision, changed string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = ", changed"
		}
	}
	if revision == "" {
		return ""
	}
	return " (" + revision + changed + ")"
}
