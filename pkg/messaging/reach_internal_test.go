package messaging

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// What senders are told has no address, not those of name servers either.
func TestUnreachableHasNoAddresses(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	servers := "read udp 10.244.1.5:37283->10.96.0.10:53: i/o timeout" // as the resolver has it
	for want, err := range map[string]error{
		"no such host":                        dial(&net.DNSError{Err: "no such host", Name: "pulsar.internal", IsNotFound: true}),
		"the host's name cannot be looked up": dial(&net.DNSError{Err: servers, Name: "pulsar.internal", Server: "10.96.0.10:53", IsTimeout: true}),
		"connect: connection refused":         dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)),
		"i/o timeout":                         dial(os.ErrDeadlineExceeded),
		"no connection":                       dial(&net.AddrError{Err: "no suitable address found", Addr: "10.0.0.7"}),
	} {
		require.EqualError(t, withoutAddresses(err), want)
	}
	require.NoError(t, withoutAddresses(nil))
	require.EqualError(t, withoutAddresses(errors.New("10.0.0.7")), "no connection")
}
