package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size in bytes. It reads from "64MiB", "10MB", "1.5GiB" or a plain number of bytes, and
// prints the same way, in the unit that gives the shortest whole number. Negative sizes are
// refused.
type Bytes int64

// Common sizes, for defaults.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

type unit struct {
	suffix string
	size   int64
}

// units lists the binary units first, so that String prefers them.
func units() []unit {
	return []unit{
		{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
	}
}

// ParseBytes reads a size. Units are the decimal kB, MB, GB, TB and the binary KiB, MiB, GiB, TiB,
// in either case, with or without a space.
func ParseBytes(text string) (Bytes, error) {
	number, factor := strings.TrimSpace(text), int64(1)
	for _, u := range units() {
		if cut := len(number) - len(u.suffix); cut > 0 && strings.EqualFold(number[cut:], u.suffix) {
			number, factor = strings.TrimSpace(number[:cut]), u.size
			break
		}
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= 0 && n <= math.MaxInt64/factor {
		return Bytes(n * factor), nil
	}
	// ParseFloat alone would let through "1e3", "0x1p4", "inf" and "NaN".
	if strings.Trim(number, "0123456789.") == "" {
		if f, err := strconv.ParseFloat(number, 64); err == nil {
			if size := f * float64(factor); size == math.Trunc(size) && size < math.MaxInt64 {
				return Bytes(size), nil
			}
		}
	}
	return 0, fmt.Errorf("must be a size such as 512KiB, 64MiB, 10MB or a number of bytes, got %q", text)
}

// String returns the size in the unit that gives the shortest whole number.
func (b Bytes) String() string {
	number, suffix := strconv.FormatInt(int64(b), 10), ""
	for _, u := range units() {
		if n := strconv.FormatInt(int64(b)/u.size, 10); int64(b)%u.size == 0 && len(n) < len(number) {
			number, suffix = n, u.suffix
		}
	}
	return number + suffix
}

// UnmarshalText reads what [ParseBytes] reads.
func (b *Bytes) UnmarshalText(text []byte) error {
	size, err := ParseBytes(string(text))
	if err != nil {
		return err
	}
	*b = size
	return nil
}

// MarshalText writes what String returns.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
