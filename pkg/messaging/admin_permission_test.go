package messaging_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// An operation of management, and what it needs. docs/library.md says so.
type managing struct {
	name  string
	needs string
	do    func(context.Context) error
}

func managingAll(topic messaging.Topic, ns messaging.Namespace) []managing {
	sub := topic.Subscription("s")
	const either, consume, admin = "produce or consume", "consume", "admin of the tenant"
	return []managing{
		{"create topic", admin, func(ctx context.Context) error { return topic.Create(ctx, 0) }},
		{"partitions", either, func(ctx context.Context) error { _, err := topic.Partitions(ctx); return err }},
		{"subscriptions", consume, func(ctx context.Context) error { _, err := topic.Subscriptions(ctx); return err }},
		{"create subscription", consume, func(ctx context.Context) error { return sub.Create(ctx, messaging.Earliest()) }},
		{"backlog", either, func(ctx context.Context) error { _, err := sub.Backlog(ctx); return err }},
		{"peek", consume, func(ctx context.Context) error { _, err := sub.Peek(ctx, 1); return err }},
		{"skip", consume, func(ctx context.Context) error { return sub.Skip(ctx, 1) }},
		{"reset to the latest", consume, func(ctx context.Context) error { return sub.Reset(ctx, messaging.Latest()) }},
		{"reset to a time", consume, func(ctx context.Context) error { return sub.Reset(ctx, messaging.AtTime(time.Now())) }},
		{"delete subscription", consume, func(ctx context.Context) error { return sub.Delete(ctx) }},
		{"compact", admin, func(ctx context.Context) error { return topic.Compact(ctx) }},
		{"compaction", admin, func(ctx context.Context) error { _, _, err := topic.Compaction(ctx); return err }},
		{"retention", admin, func(ctx context.Context) error { _, _, err := ns.Retention(ctx); return err }},
		{"set retention", admin, func(ctx context.Context) error { return ns.SetRetention(ctx, messaging.Retention{}) }},
		{"deduplication", admin, func(ctx context.Context) error { _, _, err := ns.Deduplication(ctx); return err }},
		{"set deduplication", admin, func(ctx context.Context) error { return ns.SetDeduplication(ctx, true) }},
		{"clusters of a namespace", admin, func(ctx context.Context) error { _, err := ns.ReplicationClusters(ctx); return err }},
		{"backlog quota", admin, func(ctx context.Context) error { _, _, err := ns.BacklogQuota(ctx); return err }},
		{"set backlog quota", admin, func(ctx context.Context) error {
			return ns.SetBacklogQuota(ctx, messaging.BacklogQuota{Bytes: 1 << 30, Policy: messaging.HoldProducers})
		}},
		{"subscription expiration", admin, func(ctx context.Context) error { _, _, err := ns.SubscriptionExpiration(ctx); return err }},
		{"set subscription expiration", admin, func(ctx context.Context) error { return ns.SetSubscriptionExpiration(ctx, 0) }},
		{"delete topic", admin, func(ctx context.Context) error { return topic.Delete(ctx) }},
	}
}

// requirePermissions has every operation done by roles that may and by roles that may not.
func requirePermissions(t *testing.T, b *secureBroker) {
	t.Helper()
	ctx := testContext(t)
	ns := b.Namespace(t)
	for role, action := range map[string]string{"produces": "produce", "consumes": "consume"} {
		require.NoError(t, b.Admin(ctx, http.MethodPost, "/admin/v2/namespaces/"+ns+"/permissions/"+role, []string{action}, nil))
	}
	var tenant map[string]any
	require.NoError(t, b.Admin(ctx, http.MethodGet, "/admin/v2/tenants/public", nil, &tenant))
	tenant["adminRoles"] = []string{"owns"}
	require.NoError(t, b.Admin(ctx, http.MethodPost, "/admin/v2/tenants/public", tenant, nil))

	topic := b.Topic(t, ns, 0)
	may := map[string][]string{
		"nobody":   nil,
		"produces": {"produce or consume"},
		"consumes": {"produce or consume", "consume"},
		"owns":     {"produce or consume", "consume", "admin of the tenant"},
	}
	for _, role := range []string{"nobody", "produces", "consumes", "owns"} {
		client := dialSecure(t, messaging.Config{
			URL: b.URL(), AdminURL: b.AdminURL(), Auth: messaging.Auth{Token: secret.String(b.sign.token(role, time.Hour))},
		}, newTranscript())
		for _, op := range managingAll(client.Topic(topic), client.Namespace(ns)) {
			err := op.do(ctx)
			switch {
			case !slices.Contains(may[role], op.needs):
				assert.ErrorIs(t, err, messaging.ErrAuthorization, "%s %s", role, op.name)
			case role == "produces" && op.name == "backlog": // of a subscription that it could not create
				assert.ErrorIs(t, err, messaging.ErrNotFound, "%s %s", role, op.name)
			default:
				assert.NoError(t, err, "%s %s", role, op.name)
			}
		}
		requireTries(t, client, role, b.Topic(t, ns, 2))
	}
	stranger := dialSecure(t, messaging.Config{URL: b.URL(), Auth: messaging.Auth{Token: secret.String(newSigner().token("owns", time.Hour))}}, newTranscript())
	assert.ErrorIs(t, stranger.TryConnect(ctx), messaging.ErrAuthentication)
	assert.ErrorIs(t, dialSecure(t, messaging.Config{URL: b.URL()}, newTranscript()).TryPublish(ctx, topic), messaging.ErrAuthentication)
}

// requireTries has a client try what its role may.
func requireTries(t *testing.T, client *messaging.Client, role, topic string) {
	t.Helper()
	ctx := testContext(t)
	assert.NoError(t, client.TryConnect(ctx), role)
	for action, try := range map[string]func(context.Context, string) error{"produces": client.TryPublish, "consumes": client.TryConsume} {
		if err := try(ctx, topic); role == action || role == "owns" {
			assert.NoError(t, err, "%s %s", role, action)
		} else {
			assert.ErrorIs(t, err, messaging.ErrAuthorization, "%s %s", role, action)
		}
	}
}
