package scaffold

import (
	"fmt"
	"go/token"
	"regexp"
	"slices"
	"strings"

	"lockstep/internal/cli"
)

// maxName leaves room in a file name for what is added to one.
const maxName = 64

var (
	validName = regexp.MustCompile(`^[a-z][a-z0-9]*([_-][a-z0-9]+)*$`)
	// What the go command does not take for the folder, the module or the test binary of a program.
	goNames = strings.Fields("all cmd internal main std test testdata vendor")
	// What else lies in bin, or has this module's name.
	ownNames = strings.Fields("bench launch launch-probe lockstep")
	// A module of such a name hides the package, or is hidden by it.
	packages = strings.Fields(`arena bufio bytes cmp context crypto embed encoding errors expvar flag fmt hash
		html image io iter log maps math mime net os path plugin reflect regexp runtime slices sort strconv strings structs sync syscall testing time
		unicode unique unsafe weak`)
)

// checkName refuses what cannot be the name of a folder, a module and a command.
func checkName(name string) error {
	refuse := func(format string, args ...any) error {
		return cli.Usage{Err: fmt.Errorf("%q is no name for an application: "+format, append([]any{name}, args...)...)}
	}
	switch {
	case len(name) > maxName:
		return refuse("at most %d letters", maxName)
	case !validName.MatchString(name):
		return refuse("type lower-case letters, digits, - and _, a letter first, such as heat-2d")
	case token.IsKeyword(name) || slices.Contains(goNames, name) || slices.Contains(ownNames, name):
		return refuse("it means something else to Go or Lockstep, so type another, such as my-%s", name)
	case slices.Contains(packages, name):
		return refuse("Go has a package %s, so type another, such as my-%s", name, name)
	}
	return nil
}
