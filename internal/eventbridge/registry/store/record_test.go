package store_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// What cannot be read is alarmed and left out. It can be replaced and deleted, and its revision
// counts.
func TestRecordsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]fakebroker.Message{
		"no JSON":          {Payload: []byte("{")},
		"no format":        {Payload: []byte(`{"revision":7}`)},
		"no object":        {Payload: []byte(`{"format":1,"revision":7}`)},
		"another's object": {Payload: []byte(`{"format":1,"revision":7,"object":{"bus":"orders","name":"other"}}`)},
		"bad pattern": {Payload: []byte(
			`{"format":1,"revision":7,"object":{"bus":"orders","name":"mail","rules":[{"name":"a","pattern":{"a":1}}]}}`)},
		"secret missing": {Payload: []byte(
			`{"format":1,"revision":7,"object":{"bus":"orders","name":"mail","rules":[{"name":"a","pattern":{"a":[1]}}],"target":{"webhook":{"bearer":"<redacted>"}}}}`)},
		"nothing": {Payload: []byte{}, Properties: map[string]string{"a": "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, topic := wired(t)
			ctx := testContext(t)
			_, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
			require.NoError(t, err)
			message.Key = "sub/orders/mail"
			s.Publish(topic, message)
			require.Eventually(t, func() bool { return m.Snapshot().Unreadable()["sub/orders/mail"] != "" }, eventually, tick)
			require.Nil(t, m.Snapshot().Subscriber("orders", "mail"))
			revision := m.Snapshot().Revision()
			if strings.Contains(string(message.Payload), "revision") {
				require.EqualValues(t, 7, revision)
			}
			core, logs := observer.New(zap.ErrorLevel)
			b := another(t, s, store.Options{Log: zap.New(core)})
			require.Equal(t, m.Snapshot().Unreadable(), b.Snapshot().Unreadable())
			require.Equal(t, 1, logs.FilterMessageSnippet("cannot be read").Len())

			require.ErrorIs(t, b.DeleteBus(ctx, "orders", store.Condition{}), model.ErrInUse)
			_, _, err = b.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{New: true})
			require.ErrorIs(t, err, model.ErrConflict)
			made, _, err := b.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
			require.NoError(t, err)
			require.Equal(t, revision+1, made.Revision)
			require.Empty(t, b.Snapshot().Unreadable())
			s.Publish(topic, message)
			require.Eventually(t, func() bool { return len(b.Snapshot().Unreadable()) == 1 }, eventually, tick)
			require.NoError(t, b.DeleteSubscriber(ctx, "orders", "mail", store.Condition{}))
			require.Empty(t, b.Snapshot().Unreadable())
		})
	}
}

// A record of a newer version: changes are refused, with the remedy. Objects that were read stay.
func TestARecordOfANewerVersionStopsChanges(t *testing.T) {
	t.Parallel()
	m, s, topic := wired(t)
	ctx := testContext(t)
	s.Publish(topic, fakebroker.Message{Key: "sub/orders/mail", Payload: []byte(`{"format":2,"revision":7,"thing":1}`)})
	require.Eventually(t, func() bool { return len(m.Snapshot().Unreadable()) == 1 }, eventually, tick)
	_, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "other"), store.Condition{})
	require.ErrorIs(t, err, model.ErrNewer)
	require.ErrorContains(t, err, "update this instance")
	require.ErrorIs(t, m.DeleteBus(ctx, "orders", store.Condition{}), model.ErrNewer)
	require.NotNil(t, m.Snapshot().Bus("orders"))
	// The newer version has deleted it, in a way that this one reads.
	s.Publish(topic, fakebroker.Message{Key: "sub/orders/mail", Payload: []byte(`{"format":1,"revision":8,"deleted":true,"time":"2026-01-02T15:04:05Z"}`)})
	require.Eventually(t, func() bool { return len(m.Snapshot().Unreadable()) == 0 }, eventually, tick)
	_, _, err = m.PutSubscriber(ctx, aSubscriber("orders", "other"), store.Condition{})
	require.NoError(t, err)
}

// Messages that are nobody's change nothing.
func TestForeignMessagesArePassedOver(t *testing.T) {
	t.Parallel()
	m, s, topic := wired(t)
	for _, key := range []string{"", "bus/", "bus/A", "sub/orders", "sub/orders/mail/x", "x"} {
		s.Publish(topic, fakebroker.Message{Key: key, Payload: []byte(`{"format":2,"revision":99}`)})
	}
	made := putBus(t, m, "more")
	require.EqualValues(t, 2, made.Revision)
	require.Empty(t, m.Snapshot().Unreadable())
}
