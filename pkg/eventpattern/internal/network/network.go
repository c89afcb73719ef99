// Package network reads addresses and blocks of addresses, IPv4 and IPv6.
package network

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// A Network is a block of addresses. An IPv4 address is stored in its IPv6 form ::ffff:a.b.c.d.
type Network struct {
	first [16]byte
	bits  uint8 // of the IPv6 form
}

const mappedBits = 96

// Parse reads a block in the notation of patterns. It ignores bits beyond the block's
// length.
func Parse(text string) (n Network, why string) {
	slash := strings.IndexByte(text, '/')
	if slash < 0 {
		return n, "a network needs an address and a length, as in 10.0.0.0/8"
	}
	addr, err := netip.ParseAddr(text[:slash])
	if err != nil || addr.Zone() != "" {
		return n, "a network needs an IPv4 or IPv6 address in front of its length"
	}
	length, err := strconv.ParseUint(text[slash+1:], 10, 8)
	if err != nil || int(length) > addr.BitLen() || text[slash+1] == '+' || len(text)-slash > 2 && text[slash+1] == '0' {
		return n, "a network's length is a number up to " + strconv.Itoa(addr.BitLen())
	}
	if addr.Is4() {
		length += mappedBits
	}
	return Network{maskAddress(addr.As16(), uint8(length)), uint8(length)}, ""
}

// Contains reports whether the block Contains an address. An IPv6 block with a length below 96 bits
// Contains no IPv4 address.
func (n Network) Contains(addr [16]byte) bool {
	return (n.bits >= mappedBits || !isMapped(addr)) && maskAddress(addr, n.bits) == n.first
}

// Bits is the length of the block, of the IPv6 form.
func (n Network) Bits() uint8 { return n.bits }

// Containing returns the block of a length that contains an address, and false if there is none: an
// IPv6 block with a length below 96 bits contains no IPv4 address.
func Containing(addr [16]byte, bits uint8) (Network, bool) {
	if bits < mappedBits && isMapped(addr) {
		return Network{}, false
	}
	return Network{maskAddress(addr, bits), bits}, true
}

func isMapped(addr [16]byte) bool {
	for _, b := range addr[:10] {
		if b != 0 {
			return false
		}
	}
	return addr[10] == 0xff && addr[11] == 0xff
}

func maskAddress(addr [16]byte, bits uint8) [16]byte {
	whole := int(bits / 8)
	if whole < len(addr) {
		addr[whole] &= ^byte(0xff >> (bits % 8))
		clear(addr[whole+1:])
	}
	return addr
}

// ParseAddress reads an address without allocating. netip.ParseAddr would allocate an error for
// every other text.
func ParseAddress(text []byte) (addr [16]byte, ok bool) {
	if len(text) < 2 || len(text) > 45 {
		return addr, false
	}
	for _, c := range text {
		switch {
		case c == '.':
			ok = parseV4(text, addr[12:])
			addr[10], addr[11] = 0xff, 0xff
			return addr, ok
		case c == ':':
			return parseV6(text)
		}
		if jsontext.HexValue(c) < 0 {
			return addr, false
		}
	}
	return addr, false
}

func parseV4(text, out []byte) bool {
	for part := range 4 {
		n, i := 0, 0
		for i < len(text) && text[i]-'0' < 10 {
			n = n*10 + int(text[i]-'0')
			i++
			if i > 3 {
				return false
			}
		}
		if i == 0 || n > 255 || i > 1 && text[0] == '0' {
			return false
		}
		out[part] = byte(n)
		text = text[i:]
		if part < 3 {
			if len(text) == 0 || text[0] != '.' {
				return false
			}
			text = text[1:]
		}
	}
	return len(text) == 0
}

func parseV6(text []byte) (addr [16]byte, ok bool) {
	at, gap := 0, -1
	if text[0] == ':' {
		if len(text) < 2 || text[1] != ':' {
			return addr, false
		}
		gap = 0
		text = text[2:]
	}
	for len(text) > 0 {
		if at == len(addr) {
			return addr, false
		}
		n, i := 0, 0
		for i < len(text) {
			digit := jsontext.HexValue(text[i])
			if digit < 0 {
				break
			}
			n = n<<4 | int(digit)
			i++
			if i > 4 {
				return addr, false
			}
		}
		if i == 0 {
			return addr, false
		}
		if i < len(text) && text[i] == '.' {
			if at > 12 || gap < 0 && at != 12 || !parseV4(text, addr[at:at+4]) {
				return addr, false
			}
			at += 4
			break
		}
		addr[at], addr[at+1] = byte(n>>8), byte(n)
		at += 2
		text = text[i:]
		if len(text) == 0 {
			break
		}
		if text[0] != ':' || len(text) == 1 {
			return addr, false
		}
		text = text[1:]
		if text[0] == ':' {
			if gap >= 0 {
				return addr, false
			}
			gap = at
			text = text[1:]
		}
	}
	if at < len(addr) {
		if gap < 0 {
			return addr, false
		}
		// The gap stands for the missing groups.
		n := copy(addr[len(addr)-(at-gap):], addr[gap:at])
		clear(addr[gap : len(addr)-n])
	} else if gap >= 0 {
		return addr, false // no groups are missing for the gap
	}
	return addr, true
}
