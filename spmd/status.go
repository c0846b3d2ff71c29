package spmd

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/live"
)

// serveLive answers `launch status`: on a socket without a file, that this user's and
// root's processes on this node can reach. Where it cannot be had, which the log says
// in detail, the job goes on without.
func (w *World) serveLive(o *overseer) (stop func()) {
	ln, err := net.Listen("unix", live.Address(os.Getpid()))
	if err != nil {
		w.Log.Debug().Msg("launch status will not find this rank: " + err.Error())
		return func() {}
	}
	me := live.Rank{Program: filepath.Base(os.Args[0]), Rank: w.Rank(), Size: w.Size(), Node: w.node, PID: os.Getpid(), Started: w.startup.started}
	if o != nil {
		me.Job = o.job
	}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer conn.Close()
				w.answer(conn, o, me)
			}()
		}
	}()
	return func() { ln.Close() }
}

// answer serves one request. Whoever asks for a report gets that of the whole job.
func (w *World) answer(conn net.Conn, o *overseer, me live.Rank) {
	if conn.SetDeadline(time.Now().Add(live.Limit)) != nil {
		return
	}
	line, err := bufio.NewReaderSize(conn, 64).ReadSlice('\n')
	if err != nil || !mayAsk(conn) {
		return
	}
	var reply string
	switch string(line) {
	case live.Who:
		me.Phase = w.phase.Load().(string)
		b, err := json.Marshal(me)
		if err != nil {
			return
		}
		reply = string(b)
	case live.Text:
		reply = o.show(w, false)
	case live.JSON:
		reply = o.show(w, true)
	}
	io.WriteString(conn, reply) // a reader that has gone needs none
}

// mayAsk says whether the peer is this user or root.
func mayAsk(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && asked == nil && (peer.Uid == 0 || int(peer.Uid) == os.Getuid())
}
