package job

import (
	"debug/elf"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"lockstep/internal/readable"
)

// All ranks have to be started with the same settings: a seed or a size that differs ends in wrong
// numbers, not in an error. So the start compares a sum of them, which rides on an exchange that
// the start makes in any case.

// mayDiffer marks a flag that the ranks need not have in common.
const mayDiffer = "lockstep_may_differ"

// MayDiffer is spmd.MayDiffer.
func MayDiffer(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := fs.SetAnnotation(name, mayDiffer, []string{"true"}); err != nil {
			panic("spmd: MayDiffer: " + err.Error())
		}
	}
}

// Setting is a flag, or another setting of a rank. A flag that was not given has its default, which
// may depend on the machine.
type Setting struct {
	Name  string
	Value string // as Go quotes it, so that any bytes survive as JSON
	Given bool
}

func setting(name, value string) Setting { return Setting{Name: name, Value: strconv.Quote(value)} }

// given is a setting that somebody has chosen.
func given(name, value string) Setting {
	s := setting(name, value)
	s.Given = true
	return s
}

// Settings are this rank's settings: the program, and its flags that may not differ. Without a
// command line fs is nil, and the same fields of c count.
func (c *Flags) Settings(fs *pflag.FlagSet) []Setting {
	list := []Setting{given("build", buildID())}
	if fs == nil {
		return append(list, given("Device", c.Device), given("Collectives", c.Collectives),
			given("Symmetric", c.Symmetric), given("Check", c.Check),
			given("Seed", strconv.FormatUint(c.Seed, 10)), given("Timeout", c.Timeout.String()))
	}
	list = append(list, given(programSetting, fs.Name()))
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[mayDiffer] == nil {
			s := setting("--"+f.Name, f.Value.String())
			s.Given = f.Changed
			list = append(list, s)
		}
	})
	return list
}

// programSetting names the program. If it differs, other differences say nothing.
const programSetting = "program"

// buildID returns the Go linker's identifier of the program's contents; "" if it cannot be read. It
// is read once: ranks that are goroutines may use up the files that a process may open.
// Source: cmd/internal/buildid.
var buildID = sync.OnceValue(func() string {
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
})

// Sum returns a hash of the settings that were given. It is the same on ranks that have the same.
func Sum(list []Setting) int64 {
	h := fnv.New64a()
	for _, s := range list {
		if s.Given {
			fmt.Fprintf(h, "%q%s", s.Name, s.Value)
		}
	}
	return int64(h.Sum64())
}

// Differences says in which settings the ranks differ; "" if they do not. lists has the settings of
// each rank. A default may depend on the machine, so a setting that no rank was given does not
// count.
func Differences(lists [][]Setting) string {
	var names, said []string
	for _, list := range lists {
		for _, s := range list {
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
	}
	for _, name := range names {
		ranks := map[string][]int{}
		var values []string
		given := false
		for r, list := range lists {
			value := "unknown"
			if i := slices.IndexFunc(list, func(s Setting) bool { return s.Name == name }); i >= 0 {
				value = list[i].Value
				given = given || list[i].Given
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
			values[i] = fmt.Sprintf("%s on %s", shortened(v), readable.Ranks(ranks[v]))
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

// shortened makes a quoted text shorter: it drops unneeded quotes, and the middle of a long text.
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
