package door

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Hosts are the names by which clients may ask a server that asks nobody who he is. Whoever owns a name can make it lead to any address: a page of that name in a browser
// inside the network then is of the same site as the server (DNS rebinding). So only what nobody can own counts: IP addresses, names without a dot, and names whose last
// part is no domain of the internet (localhost, local, internal, svc, test); besides these, the names that are listed, without ports. "*" is every name.
type Hosts []string

// UnknownHost is what clients are told.
const UnknownHost = "without tokens this server answers only to addresses and to names that it knows: add this name to http.hosts"

// Know reports whether the Host of a request is one of them.
func (h Hosts) Know(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	name := strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || slices.Contains(h, "*") {
		return true
	}
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return true // HTTP/1.0 has no Host: no browser
	}
	if slices.Contains([]string{"localhost", "local", "internal", "svc", "test"}, name[i+1:]) {
		return true
	}
	return slices.ContainsFunc(h, func(known string) bool { return strings.EqualFold(strings.TrimSuffix(known, "."), name) })
}
