package truncate

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "abc": "abc", "abcd": "abcd", "abcde": "abcd...", "abcé": "abc...", "abé": "abé", "a\xff": "a\uFFFD", "\xff\xff\xff\xff\xff\xff": "\uFFFD...",
		"abcdef\xff": "abcd...", "ab\xff\xff": "ab...", "\xe4\xb8": "\uFFFD",
	} {
		assert.Equal(t, want, Text(in, 4), "%q", in)
	}
}
