package job

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"

	"lockstep/internal/cli"
	"lockstep/internal/readable"
)

// console writes lines of the log for people: fields stand in the order of who logs them, behind
// the error and before the rank.
type console struct{ zerolog.ConsoleWriter }

// newConsole returns the console that writes to w, which is in front of a file.
func newConsole(w io.Writer, out *os.File) console {
	return console{zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !cli.Colours(out),
		FormatPrepare: plainLine}}
}

const rankField = "rank"

var _ io.Writer = (*console)(nil)

func (c console) Write(line []byte) (int, error) {
	c.FieldsOrder = append([]string{zerolog.ErrorFieldName}, fieldsOf(line)...)
	c.FieldsOrder = append(c.FieldsOrder, rankField)
	return c.ConsoleWriter.Write(line)
}

// fieldsOf returns the names of the fields of an object as they come, but for those that have a
// place of their own.
func fieldsOf(line []byte) (names []string) {
	d := json.NewDecoder(bytes.NewReader(line))
	if _, err := d.Token(); err != nil {
		return nil // as the ConsoleWriter says
	}
	for d.More() {
		name, err := d.Token()
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return names
		}
		if name != rankField && name != zerolog.ErrorFieldName {
			names = append(names, name.(string))
		}
	}
	return names
}

// plainLine makes a line of the log safe for a terminal: it may quote a file. The logger itself
// quotes fields that are texts, but neither the message nor lists.
func plainLine(line map[string]any) error {
	for name, value := range line {
		if _, ok := value.(string); !ok || name == zerolog.MessageFieldName {
			line[name] = plainValue(value)
		}
	}
	return nil
}

func plainValue(value any) any {
	switch v := value.(type) {
	case string:
		return readable.Text(v)
	case []any:
		for i := range v {
			v[i] = plainValue(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = plainValue(v[key])
		}
	}
	return value
}
