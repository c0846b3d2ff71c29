package main

import "testing"

// A command that does not exist is bad input: one line, with the one that was probably meant.
func TestUnknownCommand(t *testing.T) {
	for typed, want := range map[string]string{
		"rnu":   `unknown command "rnu"; did you mean run?`,
		"docto": `unknown command "docto"; did you mean doctor?`,
		"xyzzy": `unknown command "xyzzy": launch --help lists all`,
	} {
		root := command()
		root.SetArgs([]string{typed, "--steps", "3"})
		if code, say, err := run(root); code != 2 || !say || err.Error() != want {
			t.Errorf("%s: status %d, %v, %q, want %q", typed, code, say, err, want)
		}
	}
}
