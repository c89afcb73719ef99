package eventloop

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Events of a socket: those to wait for, and those that happened.
const (
	EventRead      = unix.EPOLLIN
	EventWrite     = unix.EPOLLOUT
	EventHalfClose = unix.EPOLLRDHUP // the peer sends no more
	EventClose     = unix.EPOLLHUP | unix.EPOLLERR
)

// ErrAgain is the error of reads and writes that would block.
const ErrAgain = unix.EAGAIN

// Poller reports which sockets can be read or written. It uses epoll, level-triggered.
type Poller struct {
	epoll  int
	Wakeup int
	events []unix.EpollEvent
}

// NewPoller returns a poller that waits for no socket yet.
func NewPoller() (*Poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll: %w", err)
	}
	wakeup, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("cannot create an eventfd: %w", err)
	}
	p := &Poller{epoll: epoll, Wakeup: wakeup, events: make([]unix.EpollEvent, 512)}
	if err := p.Add(wakeup, EventRead); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close closes the descriptors of the poller itself.
func (p *Poller) Close() {
	_ = unix.Close(p.Wakeup)
	_ = unix.Close(p.epoll)
}

// Wait waits for ms milliseconds, without end if ms < 0, and returns the number of events.
func (p *Poller) Wait(ms int) (int, error) {
	for {
		n, err := unix.EpollWait(p.epoll, p.events, ms)
		if err != nil && errors.Is(err, unix.EINTR) {
			continue
		}
		return n, err
	}
}

// Event returns the socket of an event and what happened to it.
func (p *Poller) Event(i int) (fd int, happened uint32) {
	return int(p.events[i].Fd), p.events[i].Events
}

// Add begins to wait for events of a socket.
func (p *Poller) Add(fd int, interest uint32) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Fd: int32(fd), Events: interest})
}

// Change sets which events of a socket to wait for.
func (p *Poller) Change(fd int, interest uint32) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Fd: int32(fd), Events: interest})
}

// Remove ends waiting for events of a socket.
func (p *Poller) Remove(fd int) { _ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// Wake ends a wait. It is safe for concurrent use.
func (p *Poller) Wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(p.Wakeup, one[:])
}

// ClearWakeup resets the event that Wake has caused.
func (p *Poller) ClearWakeup() {
	var count [8]byte
	_, _ = unix.Read(p.Wakeup, count[:])
}
