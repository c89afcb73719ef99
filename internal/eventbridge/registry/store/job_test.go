package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// TestAJobIsKeptWithItsSubscriber: whatever else is changed, and no longer.
func TestAJobIsKeptWithItsSubscriber(t *testing.T) {
	t.Parallel()
	m, s, _ := wired(t)
	ctx := testContext(t)
	made, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.Nil(t, m.Job("orders", "mail"))
	set := func(name, uid, job string) error {
		return m.ChangeJob(ctx, "orders", name, uid, func(json.RawMessage) (json.RawMessage, error) { return json.RawMessage(job), nil })
	}
	require.ErrorIs(t, set("mail", "another", `{"n":0}`), model.ErrNotFound, "it was made again meanwhile")
	require.ErrorIs(t, set("nobody", made.UID, `{"n":0}`), model.ErrNotFound)
	require.Nil(t, m.Job("orders", "mail"))
	require.NoError(t, set("mail", made.UID, `{"n":1}`))
	no := errors.New("no")
	require.ErrorIs(t, m.ChangeJob(ctx, "orders", "mail", made.UID, func(was json.RawMessage) (json.RawMessage, error) {
		require.JSONEq(t, `{"n":1}`, string(was))
		return json.RawMessage(`{"n":2}`), no
	}), no)
	require.NoError(t, m.ChangeJob(ctx, "orders", "mail", made.UID, func(json.RawMessage) (json.RawMessage, error) { return nil, nil }))
	kept := func(m member) {
		t.Helper()
		require.JSONEq(t, `{"n":1}`, string(m.Job("orders", "mail")))
	}
	kept(m)
	require.Equal(t, made.Revision, m.Snapshot().Subscriber("orders", "mail").Revision, "workers and engines go on")
	changed := aSubscriber("orders", "mail")
	changed.Description = "x"
	_, _, err = m.PutSubscriber(ctx, changed, store.Condition{})
	require.NoError(t, err)
	kept(m)
	_, err = m.ChangeState(ctx, "orders", "mail", model.Paused, "", store.Condition{})
	require.NoError(t, err)
	kept(m)
	kept(another(t, s, store.Options{}))

	require.NoError(t, m.DeleteSubscriber(ctx, "orders", "mail", store.Condition{}))
	require.Nil(t, m.Job("orders", "mail"))
	_, _, err = m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.Nil(t, m.Job("orders", "mail"), "it is another one")
	made = m.Snapshot().Subscriber("orders", "mail")
	require.ErrorContains(t, set("mail", made.UID, `{`), "must be JSON")
	require.ErrorContains(t, set("mail", made.UID, `"`+strings.Repeat("x", store.MaxJobBytes)+`"`), "at most 8192 bytes")
}

// TestOneOfManyChangesAJob: of several instances that want to begin a job one does.
func TestOneOfManyChangesAJob(t *testing.T) {
	t.Parallel()
	m, s, _ := wired(t)
	ctx := testContext(t)
	made, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	all := []member{m, another(t, s, store.Options{}), another(t, s, store.Options{})}
	begun := errors.New("another one has begun")
	var began atomic.Int64
	var wg sync.WaitGroup
	for i, m := range all {
		wg.Go(func() {
			err := m.ChangeJob(ctx, "orders", "mail", made.UID, func(was json.RawMessage) (json.RawMessage, error) {
				if was != nil {
					return nil, begun
				}
				return json.RawMessage(fmt.Sprint(i)), nil
			})
			if err == nil {
				began.Add(1)
			} else {
				assert.ErrorIs(t, err, begun)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, began.Load())
}
