package eventloop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReadSocket reads without blocking.
func ReadSocket(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != nil && errors.Is(err, unix.EINTR) {
			continue
		}
		return n, err
	}
}

// WriteSocket writes without blocking.
func WriteSocket(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Write(fd, b)
		if err != nil && errors.Is(err, unix.EINTR) {
			continue
		}
		return n, err
	}
}

// CloseSocket closes a descriptor.
func CloseSocket(fd int) { _ = unix.Close(fd) }

// ShutdownWrite says that nothing more will be written to a socket.
func ShutdownWrite(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) }

// TakeSocket takes the descriptor of a TCP or Unix connection out of Go's own poller. It closes
// conn in any case.
func TakeSocket(conn net.Conn) (int, error) {
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
	return fd, dupErr // also non-blocking: both descriptors share the flag
}

// SocketPair returns two connected sockets: one for the event loop, one for Go's own poller.
func SocketPair() (fd int, conn net.Conn, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, fmt.Errorf("cannot create a pair of sockets: %w", err)
	}
	file := os.NewFile(uintptr(pair[1]), "socketpair")
	defer func() { _ = file.Close() }() // FileConn duplicates the descriptor
	if conn, err = net.FileConn(file); err != nil {
		_ = unix.Close(pair[0])
		return -1, nil, fmt.Errorf("cannot use a pair of sockets: %w", err)
	}
	return pair[0], conn, nil
}
