package target

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
)

// Guard keeps deliveries away from addresses that only machines of one's own network reach: a subscriber names a URL,
// and Eventbridge must not become the way into that network (server-side request forgery). It looks at the address that
// is connected to, each time, when the name is resolved already: what the name meant before is of no importance. It is
// immutable and safe for concurrent use.
type Guard struct {
	allow []netip.Prefix
	ports []uint16
}

// NewGuard makes a guard that also lets through what is in one of allow, and, unless ports is empty, no other ports than
// those.
func NewGuard(allow []netip.Prefix, ports []uint16) *Guard {
	g := &Guard{ports: slices.Clone(ports)}
	for _, prefix := range allow {
		g.allow = append(g.allow, prefix.Masked())
	}
	return g
}

// RefusedAddress is the error for an address that the guard does not let through.
type RefusedAddress struct {
	Address string // without the port, unless that is the reason
	Kind    string // what is wrong with it, such as "a private address"
}

// Error says what to do.
func (e *RefusedAddress) Error() string {
	return fmt.Sprintf("%s is %s, which targets.allow and targets.ports do not allow", e.Address, e.Kind)
}

// Control is for net.Dialer.ControlContext: it is called with the address of each connection before that is made.
func (g *Guard) Control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return &RefusedAddress{Address: address, Kind: "no IP address and port"}
	}
	return g.Check(to)
}

// Check returns a *RefusedAddress for an address or a port that is not allowed.
func (g *Guard) Check(to netip.AddrPort) error {
	if len(g.ports) > 0 && !slices.Contains(g.ports, to.Port()) {
		return &RefusedAddress{Address: to.String(), Kind: "at a port"}
	}
	address := to.Addr().WithZone("").Unmap() // a prefix contains no address with a zone
	if g.allows(address) {
		return nil
	}
	kind := kindOf(address) // by itself, whatever is embedded: anybody can put an allowed IPv4 address into a private IPv6 one
	if inside, embedded := embeddedIPv4(address); kind == "" && embedded && !g.allows(inside) {
		if kind = kindOf(inside); kind != "" {
			kind = "a form of " + inside.String() + ", " + kind
		}
	}
	if kind == "" {
		return nil
	}
	return &RefusedAddress{Address: to.Addr().String(), Kind: kind}
}

// checkHost refuses what can be refused before a name is resolved: a URL with an address, or a name that always means this
// machine.
func (g *Guard) checkHost(host string, port uint16) error {
	if address, err := netip.ParseAddr(host); err == nil {
		return g.Check(netip.AddrPortFrom(address, port))
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		if err := g.Check(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)); err != nil {
			if g.Check(netip.AddrPortFrom(netip.IPv6Loopback(), port)) != nil {
				return err
			}
		}
		return nil
	}
	if len(g.ports) > 0 && !slices.Contains(g.ports, port) {
		return &RefusedAddress{Address: net.JoinHostPort(host, fmt.Sprint(port)), Kind: "at a port"}
	}
	return nil
}

func (g *Guard) allows(address netip.Addr) bool {
	return slices.ContainsFunc(g.allow, func(p netip.Prefix) bool { return p.Contains(address) })
}

// kindOf says what is special about an address, and nothing of one that anybody can reach. Of IPv6 only 2000::/3 is given
// to anybody, and NAT64's 64:ff9b::/96 is a way to IPv4; all else is refused, known or not.
func kindOf(address netip.Addr) string {
	for _, s := range special() {
		if s.prefix.Contains(address) {
			return s.kind
		}
	}
	if address.Is6() && !netip.MustParsePrefix("2000::/3").Contains(address) && !netip.MustParsePrefix("64:ff9b::/96").Contains(address) {
		return "outside of the public addresses of IPv6"
	}
	return ""
}
