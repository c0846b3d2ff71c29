// Package scaffold writes new applications.
package scaffold

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"lockstep/launch/exit"
)

// Each file of an application, under its name with .tmpl added: so nothing takes it for a part of this program.
//
//go:embed template
var templates embed.FS

const suffix = ".tmpl"

// Command returns `launch new`.
func Command() *cobra.Command {
	var lockstep string
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Write a new application that runs at once, to start from",
		Long: `Writes a new application that builds and runs at once, to start from: a program with a kernel, a halo exchange and a
check of its result, its tests and a README.

Inside the checkout of Lockstep it becomes apps/NAME. Elsewhere it becomes the folder NAME, a module of its own that uses
the checkout that this program was built from, or the one that --lockstep says.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exit.Usage{Err: fmt.Errorf("new takes one name, such as: launch new heat")}
			}
			return checkName(args[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := plan(args[0], lockstep)
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
	cmd.Flags().StringVar(&lockstep, "lockstep", "", "outside a checkout of Lockstep: the `DIR` of the one to use (default: where this program was built)")
	return cmd
}

// app is an application to be written: what the templates see.
type app struct {
	Name   string
	Root   string // the checkout that it is a part of; "" if it is a module of its own
	Binary string // as typed in its module's folder, like the commands
	Build  string
	Test   string

	dir string            // to be made
	mod map[string][]byte // go.mod and go.sum of a module of its own, before tidy
}

// plan says what to write for a command given in the working directory.
func plan(name, lockstep string) (app, error) {
	wd, err := os.Getwd()
	if err != nil {
		return app{}, err
	}
	a := app{Name: name}
	if root, ok := checkoutAbove(wd); ok {
		if lockstep != "" {
			return a, exit.Usage{Err: fmt.Errorf("--lockstep does not go with a folder of a checkout (%s): leave it out, or change to a folder elsewhere", root)}
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
		return a, exit.Usage{Err: fmt.Errorf("%s exists: type another name, or remove it", a.dir)}
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
		return fmt.Errorf("cannot write in %s (%w): change to a folder that you may write in", parent, errors.Unwrap(err))
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
	t, err := template.ParseFS(templates, "template/*"+suffix)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for name, text := range a.mod {
		files[name] = text
	}
	for _, t := range t.Templates() {
		var text bytes.Buffer
		if err := t.Execute(&text, a); err != nil {
			return nil, err
		}
		files[strings.TrimSuffix(t.Name(), suffix)] = text.Bytes()
	}
	return files, nil
}

// report prints what to type next.
func (a app) report(out io.Writer) {
	mpirun := "mpirun"
	if os.Geteuid() == 0 {
		mpirun = "mpirun --allow-run-as-root" // Open MPI refuses to otherwise
	}
	at := a.Root
	if at == "" {
		at = a.dir
	}
	fmt.Fprintf(out, "%s is written. Next:\n\n", a.dir)
	// Two ranks need two GPUs, or none.
	for _, line := range []string{"cd " + quote(at), a.Build, a.Binary, mpirun + " -np 2 " + a.Binary + " --device host", a.Test} {
		fmt.Fprintln(out, "    "+line)
	}
}

// quote returns a path as the shell wants it typed.
func quote(path string) string {
	plain := func(r rune) bool {
		return r == '/' || r == '.' || r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if strings.IndexFunc(path, func(r rune) bool { return !plain(r) }) < 0 {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
