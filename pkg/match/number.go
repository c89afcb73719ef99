package match

import "encoding/binary"

// Exponents up to this many digits are read. Longer ones are refused: no real number needs them.
const maxExponentDigits = 17

// Number keys begin with the sign. The bytes that follow a negative one are complemented, so that keys are ordered as the numbers are.
const (
	signNegative = 0
	signZero     = 1
	signPositive = 2
)

// Exponents of this size and less take two bytes of a key.
const shortExponent = 0x7000

// appendNumber appends the key of a number that scanNumber has accepted: two numbers have the same key when their values are the same, and keys are
// ordered as the values are. It reports false for an exponent beyond maxExponentDigits.
func appendNumber(dst, lit []byte) (key []byte, ok bool) {
	negative := lit[0] == '-'
	if negative {
		lit = lit[1:]
	}
	whole := digits(lit, 0)
	mantissa := whole
	if mantissa < len(lit) && lit[mantissa] == '.' {
		mantissa = digits(lit, mantissa+1)
	}
	exponent, ok := readExponent(lit[mantissa:])
	if !ok {
		return dst, false
	}
	// The value is 0.d1 d2 … * 10^exponent, d1 being the first digit that is not 0.
	exponent += int64(whole)
	first := 0
	for first < mantissa && (lit[first] == '0' || lit[first] == '.') {
		if lit[first] == '0' {
			exponent--
		}
		first++
	}
	last := mantissa
	for last > first && (lit[last-1] == '0' || lit[last-1] == '.') {
		last--
	}
	if first == last {
		return append(dst, signZero), true
	}
	start := len(dst) + 1
	if negative {
		dst = append(dst, signNegative)
	} else {
		dst = append(dst, signPositive)
	}
	dst = appendExponent(dst, exponent)
	for _, c := range lit[first:last] {
		if c != '.' {
			dst = append(dst, c)
		}
	}
	if negative {
		for i := start; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
		dst = append(dst, 0xff) // of two numbers with the same first digits, the one with more of them is less
	}
	return dst, true
}

func appendExponent(dst []byte, e int64) []byte {
	switch {
	case e > shortExponent:
		return binary.BigEndian.AppendUint64(append(dst, 0xff, 0xff), uint64(e))
	case e < -shortExponent:
		return binary.BigEndian.AppendUint64(append(dst, 0, 0), uint64(e)^1<<63)
	}
	return binary.BigEndian.AppendUint16(dst, uint16(e+0x8000))
}

// readExponent reads nothing, or e and a number.
func readExponent(b []byte) (e int64, ok bool) {
	if len(b) == 0 {
		return 0, true
	}
	b = b[1:]
	negative := b[0] == '-'
	if negative || b[0] == '+' {
		b = b[1:]
	}
	for len(b) > 0 && b[0] == '0' {
		b = b[1:]
	}
	if len(b) > maxExponentDigits {
		return 0, false
	}
	for _, c := range b {
		e = e*10 + int64(c-'0')
	}
	if negative {
		e = -e
	}
	return e, true
}
