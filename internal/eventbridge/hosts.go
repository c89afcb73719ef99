package eventbridge

import (
	"net"
	"net/netip"
)

// loopback reports whether only this machine can reach a listen address.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
