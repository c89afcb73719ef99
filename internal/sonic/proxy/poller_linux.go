package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// What a socket waits for, and what happened to it.
const (
	eventRead    = unix.EPOLLIN
	eventWrite   = unix.EPOLLOUT
	eventHalfEnd = unix.EPOLLRDHUP // the peer sends no more
	eventEnd     = unix.EPOLLHUP | unix.EPOLLERR
)

// errAgain is returned by reads and writes that cannot go on now.
const errAgain = unix.EAGAIN

// poller tells which sockets can be read or written: epoll, level-triggered.
type poller struct {
	epoll  int
	wakeup int
	events []unix.EpollEvent
}

func newPoller() (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll: %w", err)
	}
	wakeup, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("cannot create an eventfd: %w", err)
	}
	p := &poller{epoll: epoll, wakeup: wakeup, events: make([]unix.EpollEvent, 512)}
	if err := p.add(wakeup, eventRead); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *poller) close() {
	_ = unix.Close(p.wakeup)
	_ = unix.Close(p.epoll)
}

// wait returns the number of events. wait < 0 waits for ever, and milliseconds else.
func (p *poller) wait(ms int) (int, error) {
	for {
		n, err := unix.EpollWait(p.epoll, p.events, ms)
		if err != nil && errors.Is(err, unix.EINTR) {
			continue
		}
		return n, err
	}
}

// event returns the socket and what happened to it.
func (p *poller) event(i int) (fd int, happened uint32) {
	return int(p.events[i].Fd), p.events[i].Events
}

func (p *poller) add(fd int, interest uint32) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Fd: int32(fd), Events: interest})
}

func (p *poller) change(fd int, interest uint32) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Fd: int32(fd), Events: interest})
}

func (p *poller) remove(fd int) { _ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// wake ends a wait. It is safe for concurrent use.
func (p *poller) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(p.wakeup, one[:])
}

// woken takes note of wakes.
func (p *poller) woken() {
	var count [8]byte
	_, _ = unix.Read(p.wakeup, count[:])
}

func readSocket(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != nil && errors.Is(err, unix.EINTR) {
			continue
		}
		return n, err
	}
}

func writeSocket(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Write(fd, b)
		if err != nil && errors.Is(err, unix.EINTR) {
			continue
		}
		return n, err
	}
}

func closeSocket(fd int) { _ = unix.Close(fd) }

// takeSocket takes the descriptor of a TCP or Unix connection out of Go's own poller. It closes conn in any case.
func takeSocket(conn net.Conn) (int, error) {
	defer func() { _ = conn.Close() }()
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("a connection of type %T has no descriptor", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(own uintptr) {
		fd, dupErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return -1, err
	}
	return fd, dupErr // non-blocking, as Go's own is: the flag belongs to what both descriptors stand for
}

// socketPair returns two connected sockets: one for the event loop, one for Go's own poller.
func socketPair() (fd int, conn net.Conn, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, fmt.Errorf("cannot create a pair of sockets: %w", err)
	}
	file := os.NewFile(uintptr(pair[1]), "socketpair")
	defer func() { _ = file.Close() }() // FileConn has its own
	if conn, err = net.FileConn(file); err != nil {
		_ = unix.Close(pair[0])
		return -1, nil, fmt.Errorf("cannot use a pair of sockets: %w", err)
	}
	return pair[0], conn, nil
}
