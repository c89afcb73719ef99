package upstream

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRedirections(t *testing.T) {
	t.Parallel()
	const from = "10.0.0.1:7000"
	for text, want := range map[string]Redirection{
		"MOVED 1 10.0.0.2:7001":   {Address: "10.0.0.2:7001", Moving: true},
		"ASK 1 a.example:7001":    {Address: "a.example:7001", Moving: true, Asking: true},
		"MOVED 1 ::1:7001":        {Address: "[::1]:7001", Moving: true},
		"ASK 1 2001:db8::2:7001":  {Address: "[2001:db8::2]:7001", Moving: true, Asking: true},
		"MOVED 1 :7001":           {Address: "10.0.0.1:7001", Moving: true},
		"MOVED 1 ?:7001":          {Address: "10.0.0.1:7001", Moving: true},
		"MOVED 1 nowhere":         {Moving: true},
		"TRYAGAIN Multiple keys":  {},
		"CLUSTERDOWN Hash slot x": {},
	} {
		to, ok := RedirectionOf([]byte("-"+text+"\r\n"), from)
		assert.True(t, ok, text)
		assert.Equal(t, want, to, text)
	}
	for _, text := range []string{"-\r\n", "-ERR x\r\n", "-MOVED\r\n", "-MOVEDX 1 a:1\r\n", "$5\r\nMOVED\r\n"} {
		_, ok := RedirectionOf([]byte(text), from)
		assert.False(t, ok, text)
	}
}
