package store_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

const (
	keyA = "a AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
	keyB = "b AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n"
)

func parseKeys(t testing.TB, text string) *store.Keys {
	t.Helper()
	keys, err := store.ParseKeys(secret.String(text))
	require.NoError(t, err)
	return keys
}

func withSecrets(name string) model.Subscriber {
	s := aSubscriber("orders", name)
	s.Target = model.Target{Webhook: &model.Webhook{
		URL: "https://example.com/a", Headers: map[string]secret.String{"X-Key": "key-123", "X~Y": "y-123"},
		OAuth2: &model.OAuth2{TokenURL: "https://login.example.com/token", ClientID: "me", ClientSecret: "client-123"},
	}}
	return s
}

// asShown is an object as an answer of the API shows it, given back.
func asShown(t testing.TB, s *model.Subscriber) model.Subscriber {
	t.Helper()
	text, err := json.Marshal(s)
	require.NoError(t, err)
	require.NotContains(t, string(text), "-123")
	given, err := model.DecodeSubscriber(text, s.Bus, s.Name, model.Checks{})
	require.NoError(t, err)
	return given
}

func TestSecretsAreKeptAndNeverShown(t *testing.T) {
	t.Parallel()
	m, s, topic := wired(t)
	ctx := testContext(t)
	_, _, err := m.PutSubscriber(ctx, asShown(t, ptr(withSecrets("mail"))), store.Condition{})
	require.Equal(t, []string{
		"/target/webhook/headers/X-Key: no secret is stored here: give the secret",
		"/target/webhook/headers/X~0Y: no secret is stored here: give the secret",
		"/target/webhook/oauth2/client_secret: no secret is stored here: give the secret",
	}, storetest.Faults(t, err))
	made, _, err := m.PutSubscriber(ctx, withSecrets("mail"), store.Condition{})
	require.NoError(t, err)

	// What is shown can be given back: the secrets stay.
	given := asShown(t, made)
	same, _, err := m.PutSubscriber(ctx, given, store.Condition{})
	require.NoError(t, err)
	require.Equal(t, made.Revision, same.Revision)
	given.Description = "changed"
	given.Target.Webhook.URL = "https://example.com/b"
	given.Target.Webhook.Headers["X-Key"] = "new-123"
	changed, _, err := m.PutSubscriber(ctx, given, store.Condition{})
	require.NoError(t, err)
	require.Equal(t, map[string]secret.String{"X-Key": "new-123", "X~Y": "y-123"}, changed.Target.Webhook.Headers)
	require.Equal(t, "client-123", changed.Target.Webhook.OAuth2.ClientSecret.Reveal())
	require.Equal(t, "key-123", made.Target.Webhook.Headers["X-Key"].Reveal(), "the snapshot before is what it was")

	// A secret is not sent to somebody else.
	given = asShown(t, changed)
	given.Target.Webhook.URL = "https://thief.example.com/a"
	_, _, err = m.PutSubscriber(ctx, given, store.Condition{})
	require.Equal(t, []string{
		"/target/webhook/headers/X-Key: must be given again, because it would be sent to another server than before",
		"/target/webhook/headers/X~0Y: must be given again, because it would be sent to another server than before",
		"/target/webhook/oauth2/client_secret: must be given again, because it would be sent to another server than before",
	}, storetest.Faults(t, err), "the access token is sent to the webhook")

	// Another instance has them. Nothing formats them.
	b := another(t, s, store.Options{})
	require.Equal(t, "client-123", b.Snapshot().Subscriber("orders", "mail").Target.Webhook.OAuth2.ClientSecret.Reveal())
	require.NotContains(t, fmt.Sprintf("%+v", *b.Snapshot().Subscriber("orders", "mail").Target.Webhook), "-123")
	require.Contains(t, stored(s, topic), "client-123", "without keys they are stored as they are")
}

func ptr[T any](v T) *T { return &v }

// stored is all that a topic holds.
func stored(s *fakebroker.Server, topic string) string {
	var all strings.Builder
	for _, m := range s.Entries(topic) {
		all.Write(m.Payload)
	}
	return all.String()
}

func TestSecretsAreEncryptedAndKeysChanged(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	ctx := testContext(t)
	topic := model.Topics{Namespace: "public/default"}.Registry()
	a := another(t, s, store.Options{Keys: parseKeys(t, keyA)})
	putBus(t, a, "orders")
	made, _, err := a.PutSubscriber(ctx, withSecrets("mail"), store.Condition{})
	require.NoError(t, err)
	require.NotContains(t, stored(s, topic), "-123")

	has := func(keys *store.Keys) bool {
		m := another(t, s, store.Options{Keys: keys})
		defer m.stop()
		sub := m.Snapshot().Subscriber("orders", "mail")
		if sub == nil {
			require.Contains(t, m.Snapshot().Unreadable()["sub/orders/mail"], "its secrets")
			return false
		}
		require.Equal(t, made.Revision, sub.Revision)
		return sub.Target.Webhook.OAuth2.ClientSecret.Reveal() == "client-123"
	}
	require.True(t, has(parseKeys(t, keyA)))
	require.True(t, has(parseKeys(t, "# the new one\n"+keyB+keyA)))
	require.False(t, has(parseKeys(t, keyB)))
	require.False(t, has(parseKeys(t, strings.Replace(keyB, "b", "a", 1))), "another key of that name")
	require.False(t, has(nil))

	b := another(t, s, store.Options{Keys: parseKeys(t, keyB+keyA)})
	n, err := b.Reencrypt(ctx, eventually)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = b.Reencrypt(ctx, eventually)
	require.NoError(t, err)
	require.Zero(t, n)
	require.True(t, has(parseKeys(t, keyB)))
	require.NotContains(t, stored(s, topic), "-123")
}

// A lost key means giving the secrets again, and nothing else: what waits for the subscriber, and
// its dead letters, are in topics of its UID.
func TestASubscriberWhoseKeyWasLostStaysTheSame(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	ctx := testContext(t)
	a := another(t, s, store.Options{Keys: parseKeys(t, keyA)})
	putBus(t, a, "orders")
	given := withSecrets("mail")
	given.State = model.Paused
	made, _, err := a.PutSubscriber(ctx, given, store.Condition{})
	require.NoError(t, err)
	a.stop()

	b := another(t, s, store.Options{Keys: parseKeys(t, keyB)})
	require.Nil(t, b.Snapshot().Subscriber("orders", "mail"))
	_, _, err = b.PutSubscriber(ctx, asShown(t, made), store.Condition{})
	require.Len(t, storetest.Faults(t, err), 3, "the secrets are lost")
	given.State, given.Order = "", model.OrderGroup
	_, _, err = b.PutSubscriber(ctx, given, store.Condition{})
	require.Equal(t, []string{"/order: cannot be changed: it is none; make another subscriber"}, storetest.Faults(t, err))
	given.Order = ""
	again, created, err := b.PutSubscriber(ctx, given, store.Condition{Revision: made.Revision})
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, made.UID, again.UID)
	require.Equal(t, made.Created, again.Created)
	require.Equal(t, model.Paused, again.State)
	require.Equal(t, "client-123", again.Target.Webhook.OAuth2.ClientSecret.Reveal())
	require.Empty(t, b.Snapshot().Unreadable())
}

// Encrypted secrets that somebody moves to another record are not decrypted.
func TestEncryptedSecretsBelongToTheirRecord(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	ctx := testContext(t)
	topic := model.Topics{Namespace: "public/default"}.Registry()
	a := another(t, s, store.Options{Keys: parseKeys(t, keyA)})
	putBus(t, a, "orders")
	_, _, err := a.PutSubscriber(ctx, withSecrets("mail"), store.Condition{})
	require.NoError(t, err)
	entries := s.Entries(topic)
	last := entries[len(entries)-1]
	s.Publish(topic, fakebroker.Message{Key: "sub/orders/other", Properties: last.Properties, Payload: []byte(strings.ReplaceAll(string(last.Payload), `"name":"mail"`, `"name":"other"`))})
	require.Eventually(t, func() bool { return len(a.Snapshot().Unreadable()) == 1 }, eventually, tick)
	require.Nil(t, a.Snapshot().Subscriber("orders", "other"))
}

func TestKeysThatAreNotValid(t *testing.T) {
	for text, want := range map[string]string{
		"":              "it holds no key",
		"# a\n\n":       "it holds no key",
		"a":             "line 1: must be an id",
		"a b c":         "line 1: must be an id",
		"A " + keyA[2:]: "line 1: must be an id",
		"a AAAA":        "line 1: the key must be 32 bytes in base64",
		keyB + "a $$$":  "line 2: the key must be 32 bytes in base64",
		keyA + keyA:     "line 2: the id occurs twice",
	} {
		_, err := store.ParseKeys(secret.String(text))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "$$$")
	}
}
