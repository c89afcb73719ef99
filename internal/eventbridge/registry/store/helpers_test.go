package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// testContext lasts for all that a test does.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*await.Patience)
	t.Cleanup(cancel)
	return ctx
}

// fixture is a namespace of a Pulsar, with the admin API.
type fixture struct {
	pulsar *stack.PulsarServer
	topics model.Topics
	url    string
	listen string
}

func newFixture(t testing.TB) fixture {
	t.Helper()
	pulsar := stack.Pulsar(t)
	return fixture{pulsar: pulsar, topics: model.Topics{Namespace: pulsar.Namespace(t)}, url: pulsar.URL()}
}

func (w fixture) dial(t testing.TB, admin bool) *messaging.Client {
	t.Helper()
	cfg := messaging.Config{URL: w.url, ListenerName: w.listen}
	if admin {
		cfg.AdminURL = w.pulsar.AdminURL()
	}
	client, err := messaging.Dial(testContext(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		_ = client.Close(ctx)
	})
	return client
}

// member is a store that runs.
type member struct {
	*store.Store
	stop func() // as a process does; it may be called again
}

func (w fixture) open(t testing.TB, opts store.Options) member {
	t.Helper()
	return w.openWith(t, w.dial(t, true), opts)
}

func (w fixture) openWith(t testing.TB, client *messaging.Client, opts store.Options) member {
	t.Helper()
	opts.Partitions = true
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	s, err := store.Open(testContext(t), client, w.topics, opts)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		assert.ErrorIs(t, <-ended, context.Canceled)
		closing, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		assert.NoError(t, s.Close(closing))
	})
	t.Cleanup(stop)
	return member{s, stop}
}

// aSubscriber is valid.
func aSubscriber(bus, name string) model.Subscriber {
	s := model.NewSubscriber(bus, name)
	s.Rules = []model.Rule{{Name: "all", Pattern: json.RawMessage(`{"source":[{"exists":true}]}`)}}
	s.Target.Log = &model.LogTarget{}
	return s
}

func withRules(s model.Subscriber, n int) model.Subscriber {
	s.Rules = nil
	for i := range n {
		s.Rules = append(s.Rules, model.Rule{
			Name: fmt.Sprintf("r%d", i), Pattern: json.RawMessage(fmt.Sprintf(
				`{"source":["shop/%d"],"type":[{"prefix":"order.%s."}],"data":{"amount":[{"numeric":[">",%d]}],"country":[{"anything-but":["DE","FR"]}]}}`, i, s.Name, i)),
		})
	}
	return s
}

func putBus(t testing.TB, s member, name string) *model.Bus {
	t.Helper()
	b := model.NewBus(name)
	b.Partitions = 1
	made, _, err := s.PutBus(testContext(t), b, store.Condition{})
	require.NoError(t, err)
	return made
}

const (
	eventually = await.Patience
	tick       = time.Millisecond
)
