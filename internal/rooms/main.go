// Command rooms draws the picture of docs/architecture.md from the imports of the project's
// packages, and writes it there. It adds to api/1.0.txt what the packages export that programs
// import. It lowers the ceilings of the rooms' lines to what the rooms have, and prints them.
//
//	go run ./internal/rooms
//
// Its tests hold what the picture shows, the ceilings, and the length of lines.
package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "rooms:", err)
		os.Exit(1)
	}
}

// page is where the picture stands, between these lines.
const (
	page  = "docs/architecture.md"
	first = "<!-- drawn by go run ./internal/rooms -->"
	last  = "<!-- end of the drawing -->"
)

// run writes the picture of the project in a folder, and its ceilings.
func run(dir string) error {
	pkgs, err := list(dir)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, page)
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	text, err := replace(string(old), draw(pkgs))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		return err
	}
	if err := promise(dir); err != nil {
		return err
	}
	rows, err := lower(dir)
	fmt.Print(rows)
	return err
}

// replace puts a picture between the lines first and last of a page.
func replace(text, picture string) (string, error) {
	head, rest, ok := strings.Cut(text, first+"\n")
	_, tail, ok2 := strings.Cut(rest, last+"\n")
	if !ok || !ok2 {
		return "", errors.New("the lines are missing between which the picture stands: " + first + " and " + last)
	}
	return head + first + "\n" + picture + last + "\n" + tail, nil
}

// draw makes the picture for Mermaid, which GitHub shows. The text of a box is a
// Markdown string of several lines.
//
// Source: Mermaid's documentation of flowcharts, "Markdown formatting".
func draw(pkgs []pkg) string {
	var b strings.Builder
	b.WriteString("```mermaid\nflowchart TD\n")
	for _, r := range house {
		var names []string
		for _, p := range pkgs {
			if at := roomOf(p.path); at != nil && at.name == r.name {
				names = append(names, p.path)
			}
		}
		if names != nil {
			fmt.Fprintf(&b, "    %s[\"`**%s**\n    %s`\"]\n", r.name, r.what, strings.Join(lines(names), "\n    "))
		}
	}
	to := arrows(pkgs)
	for _, r := range house {
		for _, goal := range to[r.name] {
			fmt.Fprintf(&b, "    %s --> %s\n", r.name, goal)
		}
	}
	b.WriteString("```\n")
	return b.String()
}

// lines puts names of packages on lines of a box. Packages of one folder stand together, behind the
// folder's name. A folder with many packages shows their number.
func lines(names []string) []string {
	const most, many = 48, 20 // bytes of a line, packages
	slices.Sort(names)
	count := map[string]int{}
	for _, name := range names {
		count[path.Dir(name)]++
	}
	var out []string
	folder := ""
	for _, name := range names {
		dir, base := "", name
		if at := strings.LastIndex(name, "/"); at >= 0 {
			dir, base = name[:at+1], name[at+1:]
		}
		if n := count[path.Dir(name)]; dir != "" && n > many {
			if dir != folder {
				out, folder = append(out, fmt.Sprintf("%s (%d)", path.Dir(name), n)), dir
			}
			continue
		}
		if dir != "" && dir == folder && len(out[len(out)-1])+len(base)+2 <= most {
			out[len(out)-1] += ", " + base
			continue
		}
		out, folder = append(out, name), dir
	}
	return out
}
