package eventbridge

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/ingest"
)

// TestAReloadChangesTenantsOnly: any other section is named. The runtime compares the common keys.
func TestAReloadChangesTenantsOnly(t *testing.T) {
	before := DefaultConfig()
	after := before
	after.Ingest.Tenants = []ingest.TenantConfig{{}}
	after.Log.Level, after.Setup.Retention.Time = "debug", time.Hour
	require.NoError(t, before.fixed(after))
	after.Instance, after.Ingest.RequestTimeout = "another", 2*before.Ingest.RequestTimeout
	const at = ": can change only at a restart; a reload changes only ingest.tenants"
	assert.EqualError(t, before.fixed(after), "instance"+at+"\ningest"+at)
}
