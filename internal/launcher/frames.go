package launcher

import (
	"bufio"
	"bytes"
	"io"
	"regexp"
)

// A launcher frames its words about a job's end by rules of dashes or, in Hydra, equal signs. They
// only push the cause out of sight if a rank has said it.
var (
	rule   = regexp.MustCompile(`^[-=]{20,}\s*$`)
	ending = regexp.MustCompile(`MPI_ABORT was invoked on|Primary job +terminated normally|detected that one or ` +
		`more processes exited|noticed that process rank|mpirun has exited due to process rank|` +
		`BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES`)
	// Behind the frame Open MPI counts the ranks that would have printed it, and Hydra goes on.
	ended = regexp.MustCompile(`^(\[[^]]*\] (\d+ more process(es)? ha(s|ve) sent help message help-mpi-api\.txt / ` +
		`mpi-abort|Set MCA parameter "orte_base_help_aggregate" to 0)|YOUR APPLICATION TERMINATED WITH THE EXIT ` +
		`STRING|This typically refers to a problem with your application|Please see the FAQ page for debugging ` +
		`suggestions)`)
	// What fails in Open MPI itself while it ends a job, such as the text of a frame.
	inner = regexp.MustCompile(`^\[[^]]*\] (\[\[\d+,\d+\],\d+\] ORTE_ERROR_LOG: |PMIX ERROR: ).* in file `)
)

// mostFramed is how many bytes a frame may hold; what is longer is none.
const mostFramed = 16 << 10

// SplitOutput copies from to to, by lines. It leaves out the frames in which a launcher tells how
// the job ended, and errors within the launcher, and returns both. The errors are only worth
// showing if nobody says why the job has failed.
func SplitOutput(to io.Writer, from io.Reader) (endings, errors []byte) {
	pass := func(b []byte) {
		if len(b) > 0 {
			_, _ = to.Write(b) // if nobody reads any more the job goes on
		}
	}
	var frame []byte // from its first rule on
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		switch {
		case len(line) == 0:
		case rule.Match(line) && len(frame) > 0:
			if frame = append(frame, line...); ending.Match(frame) {
				endings = append(endings, frame...)
			} else {
				pass(frame)
			}
			frame = nil
		case rule.Match(line) || len(frame) > 0:
			if frame = append(frame, line...); len(frame) > mostFramed {
				pass(frame)
				frame = nil
			}
		case ended.Match(line), len(endings) > 0 && len(bytes.TrimSpace(line)) == 0:
			endings = append(endings, line...)
		case inner.Match(line):
			errors = append(errors, line...)
		default:
			pass(line)
		}
		if err != nil {
			pass(frame)
			return endings, errors
		}
	}
}
