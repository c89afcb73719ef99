package httpserver

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestNamesThatAnybodyMayOwnAreUnknown: they may be made to lead to this process.
func TestNamesThatAnybodyMayOwnAreUnknown(t *testing.T) {
	hosts := Hosts{"Events.example.com"}
	for _, known := range []string{
		"", "127.0.0.1", "127.0.0.1:9601", "[::1]:9601", "[::1]", "::1", "localhost:9601", "LOCALHOST", "eventbridge", "eventbridge:9601", "a.localhost", "eventbridge.shop.svc",
		"eventbridge.shop.svc.cluster.local:80", "events.example.com", "events.EXAMPLE.com.:443",
	} {
		assert.True(t, hosts.Contain(known), known)
	}
	for _, unknown := range []string{"evil.example", "evil.example:9601", "127.0.0.1.evil.example", "localhost.evil.example:80", "example.com", "x.events.example.com", "1.2.3.4.5", "evil.example."} {
		assert.False(t, hosts.Contain(unknown), unknown)
	}
	assert.True(t, Hosts{"*"}.Contain("evil.example"))
}
