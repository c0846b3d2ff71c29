package process

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// These limits bound what callers may take of a rank, which must go on undisturbed.
const (
	maxCallers = 8           // connections at a time; others wait in the kernel, without a descriptor
	askLimit   = time.Second // to say what they want
	maxPause   = time.Second // between two tries to accept without a free descriptor
)

// Listen listens if this process can be asked. Its name is taken while another process holds it.
func Listen() (net.Listener, error) {
	ln, err := net.Listen("unix", RankAddress(os.Getpid()))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("another process holds the name of this one: %w", err)
	}
	return ln, err
}

// Serve answers this user's and root's requests on ln, until that is closed. It refuses others
// before it reads a byte. Several goroutines may call answer. An empty answer is none.
func Serve(ln net.Listener, answer func(request string) string) {
	callers := make(chan struct{}, maxCallers)
	pause := time.Millisecond
	for {
		callers <- struct{}{}
		conn, err := ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptor or no memory is left, for now
			<-callers
			time.Sleep(pause)
			pause = min(2*pause, maxPause)
			continue
		}
		pause = time.Millisecond
		if peer, err := holder(conn); err != nil || peer.Uid != 0 && int(peer.Uid) != os.Getuid() {
			conn.Close()
			<-callers
			continue
		}
		go func() {
			defer func() {
				conn.Close()
				<-callers
			}()
			reply(conn, answer)
		}()
	}
}

func reply(conn net.Conn, answer func(request string) string) {
	if conn.SetDeadline(time.Now().Add(askLimit)) != nil {
		return
	}
	request, err := bufio.NewReaderSize(conn, 64).ReadSlice('\n')
	if err != nil {
		return
	}
	text := answer(string(request))
	if conn.SetDeadline(time.Now().Add(AskLimit)) == nil {
		_, _ = conn.Write([]byte(text)) // a reader that has gone needs none
	}
}

// holder returns the credentials of the process at the other end: the one that connected or, from
// there, the one that listens. Source: unix(7), SO_PEERCRED.
func holder(conn net.Conn) (peer *unix.Ucred, err error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(failed, err)
}

// believe returns why the process behind a name is not to be believed: anybody can take a name.
// This user's own processes are believed. For root, who looks at everybody's, the process must
// have that number.
func believe(peer *unix.Ucred, pid int) error {
	me := os.Getuid()
	if int(peer.Uid) == me || me == 0 && int(peer.Pid) == pid {
		return nil
	}
	if me == 0 { // in a container its number may be another than here
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", peer.Pid)) // it may have ended
		if slices.Contains(numbers(string(status)), pid) {
			return nil
		}
		return fmt.Errorf("process %d is not asked: process %d of user %d holds its name", pid, peer.Pid, peer.Uid)
	}
	return fmt.Errorf("process %d of user %d %w", pid, peer.Uid, ErrOtherUser)
}

// numbers returns a process's numbers in its PID namespaces, from /proc/PID/status.
func numbers(status string) (pids []int) {
	for line := range strings.Lines(status) {
		if list, ok := strings.CutPrefix(line, "NSpid:"); ok {
			for _, field := range strings.Fields(list) {
				if pid, err := strconv.Atoi(field); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}
