package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"lockstep/internal/readable"
)

// A rank understands these requests. It answers one for each connection, and closes.
const (
	RequestWho  = "who\n"  // a Rank, as JSON
	RequestText = "text\n" // what every rank of the job does, for people
	RequestJSON = "json\n" // the same, as JSON
)

// AskLimit is how long one exchange may take. A report waits some seconds for ranks that
// do not answer.
const AskLimit = 15 * time.Second

const (
	prefix  = "@lockstep.rank." // @ stands for the abstract namespace, which needs no file
	maxSaid = 64 << 20          // bytes of an answer
)

// Rank is a listening rank.
type Rank struct {
	Job     string    `json:"job"` // the same on all ranks of a job; "" for a job of one rank
	Program string    `json:"program"`
	Rank    int       `json:"rank"`
	Size    int       `json:"size"`
	Node    int       `json:"node"`
	PID     int       `json:"pid"`
	Phase   string    `json:"phase"`
	Started time.Time `json:"started"`
	UID     int       `json:"uid"` // whose it is, as the kernel says
}

// RankAddress returns where the process listens, in its network namespace.
func RankAddress(pid int) string { return prefix + strconv.Itoa(pid) }

// ListeningRanks returns the processes that listen on this node, in this network namespace.
// Source: proc(5), /proc/net/unix.
func ListeningRanks() ([]int, error) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	return parse(string(b)), nil
}

func parse(table string) []int {
	var pids []int
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		// Num RefCount Protocol Flags Type St Inode Path; the flag 0x10000 means "listens".
		if len(fields) != 8 || fields[3] != "00010000" {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimPrefix(fields[7], prefix))
		if err == nil && strings.HasPrefix(fields[7], prefix) && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Ask sends a request to a process and returns its answer, within the limit, and its user. It asks
// only processes of this user, or any for root.
func Ask(pid int, request string, limit time.Duration) (answer []byte, uid int, err error) {
	conn, err := net.DialTimeout("unix", RankAddress(pid), limit)
	if err != nil {
		return nil, 0, fmt.Errorf("process %d: %w", pid, err)
	}
	defer conn.Close()
	peer, err := holder(conn)
	if err == nil {
		err = believe(peer, pid)
	}
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(limit))
	}
	if err != nil {
		return nil, 0, err
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, 0, fmt.Errorf("process %d: %w", pid, err)
	}
	b, err := io.ReadAll(io.LimitReader(conn, maxSaid))
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("process %d does not answer: %w", pid, err)
	case len(b) == 0:
		return nil, 0, fmt.Errorf("process %d %w", pid, ErrOtherUser)
	}
	return b, int(peer.Uid), nil
}

// ErrOtherUser is in the error of asking another user's process.
var ErrOtherUser = errors.New("does not answer this user")

// AskWho asks a process who it is, within the limit. The answer can be printed.
func AskWho(pid int, limit time.Duration) (Rank, error) {
	var r Rank
	b, uid, err := Ask(pid, RequestWho, limit)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("process %d: %w", pid, err)
	}
	if r.PID != pid {
		return r, fmt.Errorf("process %d says that it is process %d", pid, r.PID)
	}
	r.Job, r.Program, r.Phase, r.UID = readable.Line(r.Job), readable.Line(r.Program), readable.Line(r.Phase), uid
	return r, nil
}
