package config_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
)

func TestBytes(t *testing.T) {
	for text, want := range map[string]struct {
		size    config.Bytes
		printed string
	}{
		"0": {0, "0"}, "1": {1, "1"}, "1024": {1024, "1KiB"}, "64MiB": {64 << 20, "64MiB"}, "10MB": {1e7, "10MB"}, "10 mb": {1e7, "10MB"},
		"1.5GiB": {1536 << 20, "1536MiB"}, "0.5KiB": {512, "512"}, "7B": {7, "7"}, "3kib": {3072, "3KiB"}, "2TB": {2e12, "2TB"},
		"9223372036854775807": {1<<63 - 1, "9223372036854775807"}, "1500": {1500, "1500"},
	} {
		got, err := config.ParseBytes(text)
		require.NoError(t, err, text)
		assert.Equal(t, want.size, got, text)
		assert.Equal(t, want.printed, got.String(), text)
	}
	for _, bad := range []string{"", "MiB", "-1", "-1MiB", "1QB", "1e3", "0x10", "inf", "NaN", "1.2.3", "0.3B", "9223372036854775808", "9000000TiB", "1 2", "+1MiB x"} {
		_, err := config.ParseBytes(bad)
		assert.Error(t, err, bad)
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, seed := range []string{"64MiB", "1.5GiB", "10 MB", "-1", "9223372036854775807"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, err := config.ParseBytes(text)
		if err != nil {
			return
		}
		if size < 0 {
			t.Fatalf("%q gave the negative size %d", text, int64(size))
		}
		if again, err := config.ParseBytes(size.String()); err != nil || again != size {
			t.Fatalf("%q printed as %q, which reads as %d, %v", text, size, again, err)
		}
	})
}
