package model

import (
	"fmt"
	"time"
)

// Duration is a time.Duration that is text in JSON, such as "30s".
type Duration time.Duration

// MarshalText writes the duration as time.Duration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads, 0 or more.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("must be a duration such as 30s or 2h, got %q", text)
	}
	*d = Duration(v)
	return nil
}

// String writes the duration as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }
