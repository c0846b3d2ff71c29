package process

import (
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

func TestCommitOf(t *testing.T) {
	const hash = "0123456789abcdef0123456789abcdef01234567"
	for _, tc := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, ""},
		{[]debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "vcs.modified", Value: "true"}}, ""},
		{[]debug.BuildSetting{{Key: "vcs.revision", Value: hash}, {Key: "vcs.modified", Value: "false"}},
			"0123456789ab"},
		{[]debug.BuildSetting{{Key: "vcs.modified", Value: "true"}, {Key: "vcs.revision", Value: hash}},
			"0123456789ab, changed"},
		{[]debug.BuildSetting{{Key: "vcs.revision", Value: "short"}}, "short"},
	} {
		if got := commitOf(tc.settings); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.settings, got, tc.want)
		}
	}
}

// The stamp of make build counts.
func TestStamped(t *testing.T) {
	defer func() { stamped = "" }()
	for stamp, want := range map[string]string{
		"0123456789ab": "0123456789ab", "0123456789ab-dirty": "0123456789ab, changed",
	} {
		if stamped = stamp; Commit() != want {
			t.Errorf("%s: %q, want %q", stamp, Commit(), want)
		}
	}
}

// The number is a semantic version, and the newest of CHANGELOG.md.
func TestVersion(t *testing.T) {
	if !regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-rc[1-9]\d*)?$`).MatchString(Version) {
		t.Errorf("%q is no semantic version", Version)
	}
	text, err := os.ReadFile("../../CHANGELOG.md")
	testkit.Must(t, err)
	_, newest, _ := strings.Cut(string(text), "\n## ")
	if !strings.HasPrefix(newest, Version+"\n") && !strings.HasPrefix(newest, Version+" ") {
		t.Errorf("CHANGELOG.md begins with %.20q, and this is %s", newest, Version)
	}
	if !strings.HasPrefix(Build(), "Lockstep "+Version) {
		t.Error(Build())
	}
}
