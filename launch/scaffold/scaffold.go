// Package scaffold writes new applications.
package scaffold

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"lockstep/internal/cli"
	"lockstep/internal/launcher"
)

// Each kind of application is a program of this module, with its tests and its page, whose name is
// placeholder. build.md.tmpl is the end of the page.
//
//go:embed kinds/*/*.go kinds/*/README.md kinds/build.md.tmpl
var programs embed.FS

const (
	placeholder = "anapp"
	readme      = "README.md"
)

// kind is a sort of application to start from.
type kind struct{ name, what string }

// The first is the default of --kind.
var kinds = []kind{
	{"stencil", "heat in a rod: a kernel that reads neighbours, a halo exchange, a graph"},
	{"train", "a small net: data-parallel gradients, Adam, checkpoints to go on from"},
	{"solver", "conjugate gradients on a grid: kernels that add up, a loop until the residual is small"},
	{"sweep", "a job for each value of a parameter, taken in turn by groups of ranks"},
}

// Command returns `launch new`.
func Command() *cobra.Command {
	var lockstep, sort string
	var names []string
	list := ""
	for _, k := range kinds {
		names = append(names, k.name)
		list += fmt.Sprintf("\n  %-9s%s", k.name, k.what)
	}
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Write a new application that runs at once, to start from",
		Long: `Writes a new application that builds and runs at once, to start from: a program with a kernel and a check
of its result, its tests and a README. --kind says which:
` + list + `

Inside the checkout of Lockstep it becomes apps/NAME. Elsewhere it becomes the folder NAME, a module of its own that uses
the checkout that this program was built from, or the one that --lockstep says.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage{Err: fmt.Errorf("new takes one name, such as: launch new heat")}
			}
			if !slices.Contains(names, sort) {
				return cli.Usage{Err: fmt.Errorf("--kind %s: want %s", sort, strings.Join(names, ", "))}
			}
			return checkName(args[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := plan(args[0], sort, lockstep)
			if err != nil {
				return err
			}
			if err := a.write(); err != nil {
				return err
			}
			a.report(cmd.OutOrStdout())
			return nil
		},
	}
	cmd.Flags().StringVar(&sort, "kind", kinds[0].name, "`KIND` of application: "+strings.Join(names, ", "))
	if err := cmd.RegisterFlagCompletionFunc("kind",
		cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is such a flag
	}
	cmd.Flags().StringVar(&lockstep, "lockstep", "",
		"outside a checkout of Lockstep: the `DIR` of the one to use (default: where this program was built)")
	return cmd
}

// app is an application to be written: what the template of its page sees.
type app struct {
	Name   string
	Root   string // the checkout that it is a part of; "" if it is a module of its own
	Binary string // as typed in its module's folder, like the commands
	Build  string
	Test   string

	kind string
	dir  string            // to be made
	mod  map[string][]byte // go.mod and go.sum of a module of its own, before tidy
}

// plan says what to write for a command given in the working directory.
func plan(name, kind, lockstep string) (app, error) {
	wd, err := os.Getwd()
	if err != nil {
		return app{}, err
	}
	a := app{Name: name, kind: kind}
	if root, ok := checkoutAbove(wd); ok {
		if lockstep != "" {
			return a, cli.Usage{Err: fmt.Errorf(
				"--lockstep does not go with a folder of a checkout (%s): leave it out, or change to a folder "+
					"elsewhere", root)}
		}
		a.Root, a.dir = root, filepath.Join(root, "apps", name)
		a.Binary, a.Build, a.Test = "bin/"+name, "go build -o bin/ ./apps/"+name, "go test ./apps/"+name
	} else {
		a.dir = filepath.Join(wd, name)
		a.Binary, a.Build, a.Test = "./"+name, "go build", "go test"
		from, err := checkout(lockstep)
		if err != nil {
			return a, err
		}
		if a.mod, err = module(name, from); err != nil {
			return a, err
		}
	}
	if _, err := os.Lstat(a.dir); err == nil {
		return a, cli.Usage{Err: fmt.Errorf("%s exists: type another name, or remove it", a.dir)}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	return a, nil
}

// write makes the folder with all its files, or nothing.
func (a app) write() (err error) {
	parent := filepath.Dir(a.dir)
	files, err := a.files()
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, "."+a.Name+"-*")
	if err != nil {
		return fmt.Errorf("cannot write in %s (%w): change to a folder that you may write in",
			parent, errors.Unwrap(err))
	}
	defer func() {
		if left := os.RemoveAll(tmp); err == nil {
			err = left
		}
	}()
	dir := filepath.Join(tmp, a.Name) // with the permissions that the user's umask says, which those of tmp are not
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
			return err
		}
	}
	if a.mod != nil {
		if err := tidy(dir); err != nil {
			return err
		}
	}
	return os.Rename(dir, a.dir)
}

// files returns the texts of the files by their names.
func (a app) files() (map[string][]byte, error) {
	files := map[string][]byte{}
	dir := path.Join("kinds", a.kind)
	entries, err := programs.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		text, err := programs.ReadFile(path.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		files[e.Name()] = bytes.ReplaceAll(text, []byte(placeholder), []byte(a.Name))
	}
	t, err := template.ParseFS(programs, "kinds/build.md.tmpl")
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	for line := range strings.Lines(string(files[readme])) {
		if strings.HasPrefix(line, "    ") { // what is typed
			line = strings.Replace(line, " "+a.Name+" ", " "+a.Binary+" ", 1)
		}
		page.WriteString(line)
	}
	if err := t.Execute(&page, a); err != nil {
		return nil, err
	}
	files[readme] = page.Bytes()
	maps.Copy(files, a.mod)
	return files, nil
}

// report prints what to type next.
func (a app) report(out io.Writer) {
	mpirun := "mpirun"
	if os.Geteuid() == 0 && !launcher.AllowsRoot(os.Getenv, launcher.BeforeOpenMPI5) {
		mpirun = "mpirun --allow-run-as-root" // Open MPI refuses to otherwise
	}
	at := a.Root
	if at == "" {
		at = a.dir
	}
	fmt.Fprintf(out, "%s is written. Next:\n\n", a.dir)
	// Two ranks need two GPUs, or none.
	for _, line := range []string{
		"cd " + quote(at), a.Build, a.Binary, mpirun + " -np 2 " + a.Binary + " --device host", a.Test,
	} {
		fmt.Fprintln(out, "    "+line)
	}
}

// quote returns a path as the shell wants it typed.
func quote(path string) string {
	plain := func(r rune) bool {
		return r == '/' || r == '.' || r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' ||
			r >= 'A' && r <= 'Z'
	}
	if strings.IndexFunc(path, func(r rune) bool { return !plain(r) }) < 0 {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
