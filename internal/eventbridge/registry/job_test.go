package registry_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// TestAJobIsKeptWithItsSubscriber: whatever else is changed, and no longer.
func TestAJobIsKeptWithItsSubscriber(t *testing.T) {
	m, s, _ := wired(t)
	ctx := testContext(t)
	made, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), registry.Condition{})
	require.NoError(t, err)
	require.Nil(t, m.Job("orders", "mail"))
	require.NoError(t, m.SetJob(ctx, "orders", "mail", "another", json.RawMessage(`{"n":0}`)), "it was made again meanwhile")
	require.NoError(t, m.SetJob(ctx, "orders", "nobody", made.UID, json.RawMessage(`{"n":0}`)))
	require.Nil(t, m.Job("orders", "mail"))
	require.NoError(t, m.SetJob(ctx, "orders", "mail", made.UID, json.RawMessage(`{"n":1}`)))
	kept := func(m member) {
		t.Helper()
		require.JSONEq(t, `{"n":1}`, string(m.Job("orders", "mail")))
	}
	kept(m)
	require.Equal(t, made.Revision, m.Snapshot().Subscriber("orders", "mail").Revision, "workers and engines go on")
	changed := aSubscriber("orders", "mail")
	changed.Description = "x"
	_, _, err = m.PutSubscriber(ctx, changed, registry.Condition{})
	require.NoError(t, err)
	kept(m)
	_, err = m.SetState(ctx, "orders", "mail", registry.Paused, "")
	require.NoError(t, err)
	kept(m)
	kept(another(t, s, registry.Options{}))

	require.NoError(t, m.DeleteSubscriber(ctx, "orders", "mail", registry.Condition{}))
	require.Nil(t, m.Job("orders", "mail"))
	_, _, err = m.PutSubscriber(ctx, aSubscriber("orders", "mail"), registry.Condition{})
	require.NoError(t, err)
	require.Nil(t, m.Job("orders", "mail"), "it is another one")
	require.ErrorContains(t, m.SetJob(ctx, "orders", "mail", made.UID, json.RawMessage(`{`)), "must be JSON")
	require.ErrorContains(t, m.SetJob(ctx, "orders", "mail", made.UID, json.RawMessage(`"`+strings.Repeat("x", registry.MaxJobBytes)+`"`)), "at most 8192 bytes")
}
