// Package network makes keys of IP addresses and reads IP networks, IPv4 and IPv6. It imports no
// other package of this repository.
package network

import (
	"net/netip"
	"unsafe"
)

// Keys of addresses have the order of the addresses. They begin with a byte for the version, so
// that an IPv6 network contains no IPv4 address. An address ::ffff:a.b.c.d is the IPv4 address.
const (
	version4 = 4
	version6 = 6
)

// longest is the length of the longest address.
const longest = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")

// Parse reads a network in the notation of patterns, and returns the keys of its first and its last
// address. It ignores bits beyond the network's length. why is the reason if text is no network.
func Parse(text string) (first, last, why string) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return "", "", "a network is an IPv4 address with a length up to 32, " +
			"or an IPv6 address with one up to 128, as in 10.0.0.0/8"
	}
	if in := p.Addr().Unmap(); p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(in, p.Bits()-96)
	}
	low := p.Masked().Addr().AsSlice()
	high := append([]byte(nil), low...)
	for bit := p.Bits(); bit < 8*len(high); bit++ {
		high[bit/8] |= 0x80 >> (bit % 8)
	}
	version := string(rune(version6))
	if p.Addr().Is4() {
		version = string(rune(version4))
	}
	return version + string(low), version + string(high), ""
}

// AppendKey appends the key of an address. It appends nothing if the text is no address, or an
// address with a zone.
func AppendKey(dst, text []byte) []byte {
	if !plausible(text) {
		return dst // netip.ParseAddr allocates an error for each text that is no address
	}
	// The address does not refer to the text: only a zone or an error would.
	addr, err := netip.ParseAddr(unsafe.String(&text[0], len(text))) //nolint:gosec // see above
	if err != nil {
		return dst
	}
	if addr = addr.Unmap(); addr.Is4() {
		four := addr.As4()
		return append(append(dst, version4), four[:]...)
	}
	sixteen := addr.As16()
	return append(append(dst, version6), sixteen[:]...)
}

// plausible reports whether a text has only characters of addresses without a zone, and a separator
// among the first characters.
func plausible(text []byte) bool {
	if len(text) < len("::") || len(text) > longest {
		return false
	}
	separated := false
	for i, c := range text {
		switch {
		case c == ':' || c == '.':
			separated = separated || i <= 4
		case c-'0' > 9 && (c|0x20)-'a' > 5:
			return false
		}
	}
	return separated
}
