package process

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Version is Lockstep's semantic version. CHANGELOG.md lists the changes of each.
const Version = "1.0.0-rc1"

// stamped is git describe's name of the checkout, if the build notes it by -ldflags, as
// make build does.
var stamped string

// Commit returns the commit that this program was built from, such as "0123456789ab" or
// "0123456789ab, changed", or "" if the build has not noted it. It is a commit of the
// program's module.
func Commit() string {
	if commit, changed := strings.CutSuffix(stamped, "-dirty"); changed {
		return commit + ", changed"
	} else if commit != "" {
		return commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return commitOf(info.Settings)
}

// Build returns the version of this program on one line: Lockstep's, the commit if the build has
// noted it, Go's, the system.
func Build() string {
	commit := ""
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Path == "lockstep" { // otherwise the commit is the program's
		if commit = Commit(); commit != "" {
			commit = " (" + commit + ")"
		}
	}
	return fmt.Sprintf("Lockstep %s%s, %s, %s/%s", Version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// commitOf returns Commit from go build's notes.
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
	return revision + changed
}
