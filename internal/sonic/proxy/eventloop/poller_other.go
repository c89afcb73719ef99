//go:build !linux

package eventloop

import (
	"errors"
	"net"
)

// The event loop needs epoll. On other systems the package compiles, but NewPoller fails.

// Events of a socket: those to wait for, and those that happened.
const (
	EventRead uint32 = 1 << iota
	EventWrite
	EventHalfClose
	EventClose
)

var (
	// ErrAgain is the error of reads and writes that would block.
	ErrAgain  = errors.New("the socket would block")
	errSystem = errors.New("the endpoint of Sonic runs on Linux only")
)

// Poller exists on Linux only.
type Poller struct{ Wakeup int }

// NewPoller fails.
func NewPoller() (*Poller, error) { return nil, errSystem }

// Close is never called.
func (*Poller) Close() {}

// Wait is never called.
func (*Poller) Wait(int) (int, error) { return 0, errSystem }

// Event is never called.
func (*Poller) Event(int) (fd int, happened uint32) { return -1, 0 }

// Add is never called.
func (*Poller) Add(int, uint32) error { return errSystem }

// Change is never called.
func (*Poller) Change(int, uint32) error { return errSystem }

// Remove is never called.
func (*Poller) Remove(int) {}

// Wake is never called.
func (*Poller) Wake() {}

// ClearWakeup is never called.
func (*Poller) ClearWakeup() {}

// ReadSocket is never called.
func ReadSocket(int, []byte) (int, error) { return 0, errSystem }

// WriteSocket is never called.
func WriteSocket(int, []byte) (int, error) { return 0, errSystem }

// CloseSocket is never called.
func CloseSocket(int) {}

// ShutdownWrite is never called.
func ShutdownWrite(int) {}

// TakeSocket fails.
func TakeSocket(net.Conn) (int, error) { return -1, errSystem }

// SocketPair fails.
func SocketPair() (fd int, conn net.Conn, err error) { return -1, nil, errSystem }
