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

// Guard keeps deliveries away from addresses that are not public. Subscribers choose the URLs of
// their webhooks, and must not reach machines in the operator's network through Eventbridge
// (server-side request forgery). The guard checks the address of each connection after the name was
// resolved: what the name resolved to before does not matter. It is immutable and safe for
// concurrent use.
type Guard struct {
	allow []netip.Prefix
	ports []uint16
}

// NewGuard makes a guard that also accepts addresses in allow. Unless ports is empty, it accepts
// only these ports.
func NewGuard(allow []netip.Prefix, ports []uint16) *Guard {
	g := &Guard{ports: slices.Clone(ports)}
	for _, prefix := range allow {
		g.allow = append(g.allow, prefix.Masked())
	}
	return g
}

// RefusedAddress is the error for an address that the guard refuses.
type RefusedAddress struct {
	Address string // without the port, unless that is the reason
	Kind    string // what is wrong with it, such as "a private address"
}

// Error says what is wrong, and which keys would allow the address.
func (e *RefusedAddress) Error() string {
	return fmt.Sprintf("%s is %s, which targets.allow and targets.ports do not allow", e.Address, e.Kind)
}

// Control is for net.Dialer.ControlContext, which calls it with the address of each connection
// before it connects.
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
	kind := kindOf(address) // of the address itself first: anyone can embed an allowed IPv4 address in a private IPv6 address
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

// checkHost refuses what can be refused before a name is resolved: a host that is an address, and a
// name that always means this machine.
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

// kindOf returns what is special about an address, and nothing for a public one. Of IPv6, only
// 2000::/3 is public, and NAT64's 64:ff9b::/96 leads to IPv4; all other addresses are refused.
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
