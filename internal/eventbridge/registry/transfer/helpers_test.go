package transfer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// testContext lasts for all that a test does.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*await.Patience)
	t.Cleanup(cancel)
	return ctx
}

// newStore runs a store without objects at a broker of its own.
func newStore(t testing.TB) *store.Store {
	t.Helper()
	client, err := messaging.Dial(testContext(t), messaging.Config{URL: fakebroker.Start(t).URL(), OperationTimeout: await.Patience})
	require.NoError(t, err)
	s, err := store.Open(testContext(t), client, model.Topics{Namespace: "public/default"}, store.Options{Partitions: true})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-ended, context.Canceled)
		closing, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		assert.NoError(t, s.Close(closing))
		_ = client.Close(closing)
	})
	return s
}

// storeWithBus is a store with the bus orders.
func storeWithBus(t testing.TB) *store.Store {
	t.Helper()
	s := newStore(t)
	b := model.NewBus("orders")
	b.Partitions = 1
	_, _, err := s.PutBus(testContext(t), b, store.Condition{})
	require.NoError(t, err)
	return s
}

func putSubscriber(t testing.TB, s *store.Store) {
	t.Helper()
	sub := model.NewSubscriber("orders", "mail")
	sub.Rules = []model.Rule{{Name: "all", Pattern: []byte(`{"source":[{"exists":true}]}`)}}
	sub.Target.Log = &model.LogTarget{}
	_, _, err := s.PutSubscriber(testContext(t), sub, store.Condition{})
	require.NoError(t, err)
}
