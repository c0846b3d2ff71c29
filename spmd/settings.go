package spmd

import (
	"debug/elf"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/internal/ranges"
	"lockstep/internal/shm"
	"lockstep/spmd/internal/control"
)

// What the ranks were started with has to be the same on all of them: a seed or a size that differs ends in wrong numbers,
// not in an error. So the start compares it, by a sum that rides on an exchange which the start makes in any case.

// mayDiffer marks a flag that the ranks need not have in common.
const mayDiffer = "lockstep_may_differ"

// MayDiffer says that ranks may be started with different values of these flags of fs, such as a folder on
// each node's own disk. All others must be the same on every rank, or Main ends the job with one line that says which
// differs, and status 2; --json and the --log flags are the exceptions among the common ones. It panics where fs lacks one.
func MayDiffer(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := fs.SetAnnotation(name, mayDiffer, []string{"true"}); err != nil {
			panic("spmd: MayDiffer: " + err.Error())
		}
	}
}

// setting is a flag, or what else a rank was started with. One that was not given has its default, which may depend on the machine.
type setting struct {
	name, value string
	given       bool
}

// settings are what this rank was started with: the program and, of its flags, those that may not differ.
func (c *Config) settings() []setting {
	list := []setting{{"build", buildID(), true}}
	fs := c.fs
	if fs == nil { // there is no command line, but the same choices
		return append(list, setting{"Device", c.Device, true}, setting{"Collectives", c.Collectives, true}, setting{"Symmetric", c.Symmetric, true},
			setting{"Check", c.Check, true}, setting{"Seed", strconv.FormatUint(c.Seed, 10), true}, setting{"Timeout", c.Timeout.String(), true})
	}
	list = append(list, setting{programSetting, fs.Name(), true})
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[mayDiffer] == nil {
			list = append(list, setting{"--" + f.Name, f.Value.String(), f.Changed})
		}
	})
	return list
}

// programSetting is the one beside which no other counts.
const programSetting = "program"

// buildID is what the Go linker calls the program's contents; "" where it cannot be read.
// Source: cmd/internal/buildid.
func buildID() string {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	const head = 16 // three lengths, "Go" and zeros
	note := f.Section(".note.go.buildid")
	if note == nil {
		return ""
	}
	text, err := note.Data()
	if err != nil || len(text) < head {
		return ""
	}
	id := strings.TrimRight(string(text[head:]), "\x00")
	return id[strings.LastIndexByte(id, '/')+1:]
}

// sumOf is the same where the settings are that were given.
func sumOf(list []setting) int64 {
	h := fnv.New64a()
	for _, s := range list {
		if s.given {
			fmt.Fprintf(h, "%q%q", s.name, s.value)
		}
	}
	return int64(h.Sum64())
}

// compareSettings fails on all ranks alike where their settings differ.
//
// Collective over the ranks of m, which are all.
func (w *World) compareSettings(m *shm.Comm) error {
	var mine []byte
	for _, s := range w.cfg.settings() {
		mine = fmt.Appendf(mine, "%q %q %v\n", s.name, s.value, s.given)
	}
	all, err := control.Gather(m, mine)
	if err != nil {
		return err
	}
	lists := make([][]setting, len(all))
	for r, said := range all {
		for line := range strings.Lines(string(said)) {
			var s setting
			if _, err := fmt.Sscanf(line, "%q %q %t\n", &s.name, &s.value, &s.given); err != nil {
				return fmt.Errorf("settings of rank %d: %w", r, err)
			}
			lists[r] = append(lists[r], s)
		}
	}
	if text := differences(lists); text != "" {
		w.agreed = true
		return Usage(errors.New(text))
	}
	return nil
}

// differences says in which settings the ranks differ: a list for each of them; "" where they do not. One that has its
// default everywhere may depend on the machine.
func differences(lists [][]setting) string {
	var names, said []string
	for _, list := range lists {
		for _, s := range list {
			if !slices.Contains(names, s.name) {
				names = append(names, s.name)
			}
		}
	}
	for _, name := range names {
		ranks := map[string][]int{}
		var values []string
		given := false
		for r, list := range lists {
			value := "unknown"
			if i := slices.IndexFunc(list, func(s setting) bool { return s.name == name }); i >= 0 {
				value = strconv.Quote(list[i].value)
				given = given || list[i].given
			}
			if ranks[value] == nil {
				values = append(values, value)
			}
			ranks[value] = append(ranks[value], r)
		}
		if len(values) < 2 || !given {
			continue
		}
		for i, v := range values {
			values[i] = fmt.Sprintf("%s on %s", shortened(v), ranges.Ranks(ranks[v]))
		}
		text := fmt.Sprintf("%s is %s", name, strings.Join(values, ", "))
		if name == programSetting {
			return different + text
		}
		said = append(said, text)
	}
	if said == nil {
		return ""
	}
	return different + strings.Join(said, "; ")
}

const different = "the ranks were started differently: "

// shortened is a quoted text for people: without quotes where it needs none, and of a long one the beginning and the end.
func shortened(quoted string) string {
	const longest, end = 100, 40 // bytes
	if len(quoted) > longest {
		quoted = quoted[:longest-end] + "..." + quoted[len(quoted)-end:]
	}
	if bare := strings.Trim(quoted, `"`); bare != "" && !strings.ContainsAny(bare, ` "\,;`) {
		return bare
	}
	return quoted
}
