package proxy

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRedirections(t *testing.T) {
	t.Parallel()
	const from = "10.0.0.1:7000"
	for text, want := range map[string]redirection{
		"MOVED 1 10.0.0.2:7001":   {address: "10.0.0.2:7001", moving: true},
		"ASK 1 a.example:7001":    {address: "a.example:7001", moving: true, asking: true},
		"MOVED 1 ::1:7001":        {address: "[::1]:7001", moving: true},
		"ASK 1 2001:db8::2:7001":  {address: "[2001:db8::2]:7001", moving: true, asking: true},
		"MOVED 1 :7001":           {address: "10.0.0.1:7001", moving: true},
		"MOVED 1 ?:7001":          {address: "10.0.0.1:7001", moving: true},
		"MOVED 1 nowhere":         {moving: true},
		"TRYAGAIN Multiple keys":  {},
		"CLUSTERDOWN Hash slot x": {},
	} {
		to, ok := redirectionOf([]byte("-"+text+"\r\n"), from)
		assert.True(t, ok, text)
		assert.Equal(t, want, to, text)
	}
	for _, text := range []string{"-\r\n", "-ERR x\r\n", "-MOVED\r\n", "-MOVEDX 1 a:1\r\n", "$5\r\nMOVED\r\n"} {
		_, ok := redirectionOf([]byte(text), from)
		assert.False(t, ok, text)
	}
}
