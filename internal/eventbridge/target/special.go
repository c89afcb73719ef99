package target

import (
	"net/netip"
	"sync"
)

// specialPrefix is a range of addresses that are not public.
type specialPrefix struct {
	prefix netip.Prefix
	kind   string
}

// special returns the ranges in IANA's registries of special-purpose addresses (RFC 6890 and its
// successors), and the addresses outside of them at which clouds serve metadata.
//
//nolint:gochecknoglobals // made once, read only
var special = sync.OnceValue(func() []specialPrefix {
	const private, loopback, linkLocal, multicast = "a private address", "a loopback address", "a link-local address", "a multicast address"
	const reserved, documentation, metadata = "a reserved address", "an address for documentation", "the address of a cloud's metadata service"
	var all []specialPrefix
	for _, s := range [...][2]string{
		// The first range that contains an address names its kind.
		{"169.254.169.254/32", metadata},
		{"169.254.170.2/32", metadata},   // AWS, containers
		{"100.100.100.200/32", metadata}, // Alibaba Cloud
		{"192.0.0.192/32", metadata},     // Oracle Cloud
		{"168.63.129.16/32", metadata},   // Azure; a public address otherwise
		{"fd00:ec2::/32", metadata},      // AWS
		{"fd20:ce::254/128", metadata},   // Google Cloud
		{"0.0.0.0/8", "an unspecified address"},
		{"10.0.0.0/8", private},
		{"100.64.0.0/10", "an address of a carrier's NAT (RFC 6598)"},
		{"127.0.0.0/8", loopback},
		{"169.254.0.0/16", linkLocal},
		{"172.16.0.0/12", private},
		{"192.0.0.0/24", reserved},
		{"192.0.2.0/24", documentation},
		{"192.88.99.0/24", reserved}, // relays of 6to4
		{"192.168.0.0/16", private},
		{"198.18.0.0/15", "an address for benchmarks"},
		{"198.51.100.0/24", documentation},
		{"203.0.113.0/24", documentation},
		{"224.0.0.0/4", multicast},
		{"255.255.255.255/32", "the broadcast address"},
		{"240.0.0.0/4", reserved},
		{"::/128", "an unspecified address"},
		{"::1/128", loopback},
		{"64:ff9b:1::/48", "an address of a network's own NAT64 (RFC 8215)"},
		{"100::/64", reserved},
		{"2001::/32", "an address of Teredo"},
		{"2001::/23", reserved}, // protocol assignments: benchmarks, ORCHID ...
		{"2001:db8::/32", documentation},
		{"3fff::/20", documentation},
		{"5f00::/16", reserved}, // segment routing
		{"fc00::/7", private},
		{"fe80::/10", linkLocal},
		{"fec0::/10", private}, // site-local, deprecated
		{"ff00::/8", multicast},
	} {
		all = append(all, specialPrefix{netip.MustParsePrefix(s[0]), s[1]})
	}
	return all
})

// embeddedIPv4 returns the IPv4 address that an IPv6 address leads to: in the forms of NAT64 (RFC
// 6052), 6to4 (RFC 3056), IPv4-compatible and -translated addresses (RFC 4291, RFC 2765), and
// ISATAP (RFC 5214). The caller has unmapped IPv4-mapped addresses.
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
	case [12]byte(b[:12]) == [12]byte{}: // compatible
		return last, true
	case [12]byte(b[:12]) == [12]byte{8: 0xff, 9: 0xff}: // translated
		return last, true
	case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP
		return last, true
	}
	return netip.Addr{}, false
}
