// Package number makes keys of numbers in JSON. The order of the keys is the order of the numbers.
// Of this repository it imports pkg/jsontext only.
package number

import (
	"encoding/binary"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// maxExponentDigits is the maximum number of digits of an exponent. Longer exponents are refused:
// no real number needs them.
const maxExponentDigits = 17

// The key of a number begins with its sign. In the key of a negative number the following bytes are
// complemented, so that keys have the order of their numbers.
const (
	signNegative = 0
	signZero     = 1
	signPositive = 2
)

// shortExponent is the largest absolute exponent that takes two bytes of a key.
const shortExponent = 0x7000

// AppendKey appends the key of a number that is valid JSON. Numbers of the same value
// have the same key, and keys have the order of the values. ok is false if the exponent has more
// than maxExponentDigits digits.
func AppendKey(dst, lit []byte) (key []byte, ok bool) {
	negative := lit[0] == '-'
	if negative {
		lit = lit[1:]
	}
	whole := jsontext.Digits(lit, 0)
	mantissa := whole
	if mantissa < len(lit) && lit[mantissa] == '.' {
		mantissa = jsontext.Digits(lit, mantissa+1)
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
		dst = append(dst, 0xff) // of two negative numbers with the same first digits, the one with more digits is less
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

// readExponent reads an exponent: e and a number. An empty b is the exponent 0.
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
