//go:build !linux

package proxy

import (
	"errors"
	"net"
)

// The endpoint's event loop is made for epoll. On other systems the package builds, and Serve fails.

const (
	eventRead uint32 = 1 << iota
	eventWrite
	eventHalfEnd
	eventEnd
)

var (
	errAgain  = errors.New("not now")
	errSystem = errors.New("the endpoint of Sonic runs on Linux only")
)

type poller struct{ wakeup int }

func newPoller() (*poller, error) { return nil, errSystem }

func (*poller) close()                     {}
func (*poller) wait(int) (int, error)      { return 0, errSystem }
func (*poller) event(int) (int, uint32)    { return -1, 0 }
func (*poller) add(int, uint32) error      { return errSystem }
func (*poller) change(int, uint32) error   { return errSystem }
func (*poller) remove(int)                 {}
func (*poller) wake()                      {}
func (*poller) woken()                     {}
func readSocket(int, []byte) (int, error)  { return 0, errSystem }
func writeSocket(int, []byte) (int, error) { return 0, errSystem }
func closeSocket(int)                      {}
func takeSocket(net.Conn) (int, error)     { return -1, errSystem }
func socketPair() (int, net.Conn, error)   { return -1, nil, errSystem }
