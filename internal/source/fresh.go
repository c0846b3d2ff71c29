package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"os"
	"path/filepath"
	"strings"
)

// The file of Generate lists the declarations that it was made of, and their sum.
const (
	OfLine  = "// Of: "
	SumLine = "// Sum: "
)

// version changes with the output of Generate for the same kernels.
const version = 12

// Sum is over declarations with their lines, which reports name, and the text of the file behind
// the line of the sum.
func (s *Source) Sum(names []string, text string) string {
	h := sha256.New()
	fmt.Fprintln(h, version, text)
	for _, name := range names {
		d, ok := s.Decls[name]
		if !ok {
			continue
		}
		node := d.Node
		if f, ok := node.(*ast.FuncDecl); ok { // with its directive, but without what a comment says else
			words, _ := Directive(f)
			there, _ := Marked(f, HostMark)
			part, _ := Marked(f, ToleranceMark)
			fmt.Fprintln(h, words, there, part)
			plain := *f
			plain.Doc = nil
			node = &plain
		}
		var b bytes.Buffer
		if err := format.Node(&b, s.Fset, node); err != nil {
			fmt.Fprintln(h, err)
		}
		p := s.Fset.Position(node.Pos())
		fmt.Fprintln(h, name, filepath.Base(p.Filename), p.Line, b.String())
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// Same begins a line of the file that does not compile if a constant of another package has another
// value.
const Same = "_ = [1]int{}["

// Fresh says why the files of Generate in a folder do not belong to the present kernels, or returns
// nil. It runs no program, but the go command if they use constants of other packages.
func Fresh(dir string) error {
	for _, output := range []string{Output, TestOutput} {
		s, err := Parse(dir, output)
		if err != nil {
			return err
		}
		if err := s.fresh(dir); err != nil {
			return err
		}
	}
	return nil
}

func (s *Source) fresh(dir string) error {
	const renew = ": type go generate there"
	all := s.Kernels()
	text, err := os.ReadFile(filepath.Join(dir, s.Output))
	switch {
	case errors.Is(err, os.ErrNotExist) && len(all) == 0:
		return nil
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s is missing, for %s%s", s.Output, s.place(all[0]), renew)
	case err != nil:
		return err
	case len(all) == 0:
		return fmt.Errorf("%s is left over: the package has no kernels%s", s.Output, renew)
	}
	head, rest, _ := strings.Cut(string(text), "\n"+SumLine)
	sum, rest, _ := strings.Cut(rest, "\n")
	_, of, _ := strings.Cut(head, OfLine)
	names := strings.Fields(of)
	known := map[string]bool{}
	for _, n := range names {
		known[n] = true
	}
	for _, k := range all {
		if !known[k.Name.Name] {
			return fmt.Errorf("%s is old: it has no kernel %s%s", s.Output, s.place(k), renew)
		}
	}
	if s.Sum(names, rest) != sum {
		return fmt.Errorf("%s is old: one of %s, or the file itself, has changed since%s", s.Output,
			strings.Join(names, ", "), renew)
	}
	if strings.Contains(rest, Same) {
		c, err := s.Check(dir)
		if err != nil {
			return err
		}
		if _, what := c.Fits(text); what != "" {
			return fmt.Errorf("%s is old: %s%s", s.Output, what, renew)
		}
	}
	return nil
}

func (s *Source) place(f *ast.FuncDecl) string {
	p := s.Fset.Position(f.Pos())
	return fmt.Sprintf("%s (%s:%d)", f.Name.Name, filepath.Base(p.Filename), p.Line)
}
