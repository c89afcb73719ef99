package sonic

import (
	"testing"

	"github.com/aviaryhq/aviary/test/e2e/sonic/clients"
)

// TestStockClients: what they do with Redis they do with Sonic, also where another zone makes it
// keep versions.
func TestStockClients(t *testing.T) {
	t.Parallel()
	a, _ := pair(t)
	clients.Run(t, "redis://"+a.Address("redis"))
}
