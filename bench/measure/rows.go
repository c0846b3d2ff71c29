package measure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

// Print prints the table for people.
func Print(rows []Row) {
	t := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "bench\twhat\tranks\tours\ttheirs\tunit\tratio\tgoal\tmet\tpeer")
	for _, r := range rows {
		theirs, ratio, peer := "-", "-", "-"
		if r.Theirs != nil {
			theirs, ratio, peer = fmt.Sprintf("%.4g", *r.Theirs), fmt.Sprintf("%.3f", *r.Ratio), *r.Peer
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%.4g\t%s\t%s\t%s\t%.4g\t%v\t%s\n",
			r.Bench, r.What, r.Ranks, r.Ours, theirs, r.Unit, ratio, r.Goal, r.Met, peer)
	}
	t.Flush()
}

// Median returns the middle one of some numbers, the upper of two.
func Median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

// ReadRows reads a file of rows, or none if there is no file.
func ReadRows(name string) ([]Row, error) {
	data, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return Lines[Row](string(data))
}

// WriteRows replaces a file of rows.
func WriteRows(name string, rows []Row) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, r := range rows {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o666)
}
