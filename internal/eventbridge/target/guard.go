package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Guard keeps deliveries away from addresses that are not public. Subscribers choose the URLs of
// their webhooks, and must not reach machines in the operator's network through Eventbridge
// (server-side request forgery). The guard checks the address of each connection after the name was
// resolved: what the name resolved to before does not matter. It is immutable and safe for
// concurrent use.
type Guard struct {
	allow   []netip.Prefix
	ports   []uint16
	special []specialPrefix
}

// NewGuard makes a guard that also accepts addresses in allow. Unless ports is empty, it accepts
// only these ports.
func NewGuard(allow []netip.Prefix, ports []uint16) *Guard {
	g := &Guard{ports: slices.Clone(ports), special: specialPrefixes()}
	for _, prefix := range allow {
		g.allow = append(g.allow, prefix.Masked())
	}
	return g
}

// RefusedAddress is the error for an address that the guard refuses.
type RefusedAddress struct {
	Address string // without the port, unless that is the reason
	Kind    string // what is wrong with it, and the key that would allow it
}

// Error says what is wrong with the address.
func (e *RefusedAddress) Error() string {
	return e.Address + " is " + e.Kind
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
	if err := g.checkPort(to.Addr().String(), to.Port()); err != nil {
		return err
	}
	address := to.Addr().WithZone("").Unmap() // a prefix contains no address with a zone
	if g.allows(address) {
		return nil
	}
	// Of the address itself first: anyone can embed an allowed IPv4 address in a private IPv6
	// address.
	kind := g.kindOf(address)
	if inside, embedded := embeddedIPv4(address); kind == "" && embedded && !g.allows(inside) {
		if kind = g.kindOf(inside); kind != "" {
			kind = "a form of " + inside.String() + ", " + kind
		}
	}
	if kind == "" {
		return nil
	}
	return &RefusedAddress{Address: to.Addr().String(), Kind: kind + "; targets.allow does not contain it"}
}

// checkURL refuses a URL that can be refused before its name is resolved: by its port, and if its
// host is an address or localhost. The error does not repeat the URL, which may hold a secret.
func (g *Guard) checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errors.New("must be a URL")
	}
	standard := "443"
	if u.Scheme == "http" {
		standard = "80"
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), standard), 10, 16)
	if err != nil || port == 0 {
		return errors.New("must have a port from 1 to 65535, or none")
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		host = "127.0.0.1"
	}
	err = g.checkPort(host, uint16(port))
	if address, invalid := netip.ParseAddr(host); invalid == nil {
		err = g.Check(netip.AddrPortFrom(address, uint16(port)))
	}
	if err != nil {
		return fmt.Errorf("must be an allowed address: %w", err)
	}
	return nil
}

func (g *Guard) checkPort(host string, port uint16) error {
	if len(g.ports) > 0 && !slices.Contains(g.ports, port) {
		return &RefusedAddress{Address: net.JoinHostPort(host, strconv.Itoa(int(port))), Kind: "at a port that targets.ports does not contain"}
	}
	return nil
}

func (g *Guard) allows(address netip.Addr) bool {
	return slices.ContainsFunc(g.allow, func(p netip.Prefix) bool { return p.Contains(address) })
}

// kindOf returns what is special about an address, and nothing for a public one. Of IPv6, only
// 2000::/3 is public, and NAT64's 64:ff9b::/96 leads to IPv4; all other addresses are refused.
func (g *Guard) kindOf(address netip.Addr) string {
	for _, s := range g.special {
		if s.prefix.Contains(address) {
			return s.kind
		}
	}
	if address.Is6() && !netip.MustParsePrefix("2000::/3").Contains(address) && !netip.MustParsePrefix("64:ff9b::/96").Contains(address) {
		return "outside of the public addresses of IPv6"
	}
	return ""
}

// specialPrefix is a range of addresses that are not public.
type specialPrefix struct {
	prefix netip.Prefix
	kind   string
}

// specialPrefixes returns the ranges in IANA's registries of special-purpose addresses (RFC 6890
// and its successors), and the addresses outside of them at which clouds serve metadata. The first
// range that contains an address names its kind.
func specialPrefixes() (all []specialPrefix) {
	for _, s := range [...]struct{ kind, prefixes string }{
		// AWS and others, AWS' containers, Alibaba, Oracle, Azure (otherwise public), AWS, Google.
		{"the address of a cloud's metadata service", "169.254.169.254/32 169.254.170.2/32 100.100.100.200/32 " +
			"192.0.0.192/32 168.63.129.16/32 fd00:ec2::/32 fd20:ce::254/128"},
		{"an unspecified address", "0.0.0.0/8 ::/128"},
		{"a private address", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10"},
		{"a loopback address", "127.0.0.0/8 ::1/128"},
		{"a link-local address", "169.254.0.0/16 fe80::/10"},
		{"a multicast address", "224.0.0.0/4 ff00::/8"},
		{"the broadcast address", "255.255.255.255/32"},
		{"an address of a carrier's NAT (RFC 6598)", "100.64.0.0/10"},
		{"an address of a network's own NAT64 (RFC 8215)", "64:ff9b:1::/48"},
		{"an address of Teredo", "2001::/32"},
		{"an address for benchmarks", "198.18.0.0/15"},
		{"an address for documentation", "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20"},
		{"a reserved address", "192.0.0.0/24 192.88.99.0/24 240.0.0.0/4 100::/64 2001::/23 5f00::/16"},
	} {
		for prefix := range strings.FieldsSeq(s.prefixes) {
			all = append(all, specialPrefix{netip.MustParsePrefix(prefix), s.kind})
		}
	}
	return all
}

// embeddedIPv4 returns the IPv4 address that an IPv6 address leads to: in the forms of NAT64 (RFC
// 6052), 6to4 (RFC 3056) and ISATAP (RFC 5214). The caller has unmapped IPv4-mapped addresses, and
// refuses all other forms as not public.
func embeddedIPv4(address netip.Addr) (netip.Addr, bool) {
	if !address.Is6() {
		return netip.Addr{}, false
	}
	b := address.As16()
	last := netip.AddrFrom4([4]byte(b[12:16]))
	switch {
	case [12]byte(b[:12]) == [12]byte{0x00, 0x64, 0xff, 0x9b}: // NAT64
		return last, true
	case b[0] == 0x20 && b[1] == 0x02: // 6to4
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP
		return last, true
	}
	return netip.Addr{}, false
}
