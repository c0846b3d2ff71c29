package readable

import (
	"encoding/json"
	"testing"
	"unicode"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "",
		"a b\tc\nd äöü 漢字 😀":          "a b\tc\nd äöü 漢字 😀",
		"\x1b]0;owned\x07\x1b[2Jx":    `\x1b]0;owned\a\x1b[2Jx`,
		"\r\x00\x7f\b":                `\r\x00\x7f\b`,
		"\u009b2J":                    `\u009b2J`, // the one-character form of ESC [
		"\u202eabc\u2066":             `\u202eabc\u2066`,
		"\xffa\xc3":                   "\uFFFDa\uFFFD",
		"\U000e0041":                  `\U000e0041`, // an invisible tag
		"it's 'quoted' and \"so\" \\": "it's 'quoted' and \"so\" \\",
	} {
		if got := Text(text); got != want {
			t.Errorf("Text(%q) = %q, want %q", text, got, want)
		}
	}
	if got, want := Line("a\n\tb\x1b"), `a\n\tb\x1b`; got != want {
		t.Errorf("Line = %q, want %q", got, want)
	}
}

// JSON keeps its meaning, and shows no dangerous character.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{"", "\u009b2J", "\U000e0041😀", "\x7f\"\\\u202e", "\u2028 ä"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text, err := json.MarshalIndent(map[string]string{s: s}, "\r", "\t")
		if err != nil {
			t.Skip()
		}
		var want, got map[string]string
		safe := JSON(text)
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(safe, &got); err != nil {
			t.Fatalf("%q: %v", safe, err)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%q is read as %q after it", v, got[k])
			}
		}
		for _, r := range string(safe) {
			if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
				t.Errorf("%q holds %q", safe, r)
			}
		}
	})
}
