//go:build !race

package messaging_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// brokerSeedsVariable is a number of fresh seeds to run on the real broker in place of
// modelBrokerSeeds.
const brokerSeedsVariable = "AVIARY_MODEL_BROKER_SEEDS"

// TestModelOnTheBroker runs some seeds on the real broker, one after the other. The network between
// takes the place of the faults that a broker does not have on demand.
func TestModelOnTheBroker(t *testing.T) {
	t.Parallel()
	seeds := modelBrokerSeeds
	n, fresh := variable(t, brokerSeedsVariable)
	if one, replay := variable(t, seedVariable); replay {
		seeds, fresh = slices.Collect(repeated(one, 1)), true
	} else if fresh {
		seeds = slices.Collect(freshSeeds(t, n))
	}
	url, srv, line := faultyPulsar(t)
	ns := srv.Namespace(t)
	direct, err := messaging.Dial(testContext(t), messaging.Config{URL: srv.URL()})
	require.NoError(t, err)
	run := func(seed uint64) modelOutcome {
		p := newModelPlan(seed)
		if p.consumer.Type != messaging.Shared {
			p.consumers = 1 // who has a key or a partition, only the broker knows
		}
		return runModel(p, func(p modelPlan) (modelServer, error) {
			b := &brokerModel{t: t, plan: p, url: url, srv: srv, line: line, direct: direct, name: srv.Topic(t, ns, p.partitions)}
			return b, b.open()
		})
	}
	var all []modelOutcome
	for _, seed := range seeds {
		all = append(all, run(seed))
	}
	if !fresh {
		all = confirmed(t, all, func(seed uint64) []modelOutcome {
			return []modelOutcome{run(seed), run(seed), run(seed)}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelLimit)
	defer cancel()
	require.NoError(t, direct.Close(ctx))
	if os.Getenv(seedVariable) != "" {
		t.Log(all[0].trace())
	}
	report(t, all)
}

// brokerModel runs a seed on a topic of the real broker. Clients of the seed reach it through line,
// its own do not.
type brokerModel struct {
	t      *testing.T
	plan   modelPlan
	url    string
	srv    *stack.PulsarServer
	line   *proxy.Proxy
	direct *messaging.Client
	name   string
	raw    *messaging.Publisher
	all    []modelMessage // read so far
}

func (b *brokerModel) open() error {
	profile := messaging.Business()
	profile.Routing = messaging.RouteExplicit
	if b.plan.consumer.Type == messaging.KeyShared {
		profile.BatchRecords = 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelLimit)
	defer cancel()
	var err error
	if !b.plan.exclusive {
		b.raw, err = b.direct.Publisher(ctx, b.name, profile)
	}
	return err
}

func (b *brokerModel) config(string) messaging.Config {
	return messaging.Config{URL: b.url, ListenerName: proxy.Listener, OperationTimeout: modelTimeout}
}

func (b *brokerModel) topic() string { return b.name }

func (b *brokerModel) publish(partition int, batch []modelRecord) {
	rs := make([]*messaging.Record, 0, len(batch))
	for _, r := range batch {
		rs = append(rs, &messaging.Record{Key: r.key, OrderingKey: r.ordering, Payload: []byte(r.payload), Partition: partition})
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelLimit)
	defer cancel()
	if err := b.raw.Publish(ctx, rs...); err != nil {
		b.t.Errorf("publish beside the line: %v", err)
	}
}

func (b *brokerModel) strike(_ *modelRun, f faultPlan) {
	switch f.kind {
	case faultStall, faultHoldEntries, faultHoldReceipts, faultSlow:
		if err := b.line.Silence(); err != nil {
			b.t.Errorf("silence: %v", err)
		}
		time.Sleep(10 * f.last)
		b.line.Heal()
	case faultCloseConsumers, faultCloseProducers, faultEndSessions, faultChangeActive, faultFence, faultSendError:
		b.srv.Unload(b.t, b.name)
	default:
		b.line.Cut()
		time.Sleep(10 * f.last)
		if err := b.line.Restore(); err != nil {
			b.t.Errorf("restore: %v", err)
		}
	}
}

func (b *brokerModel) heal() {}

func (b *brokerModel) subscribed(ctx context.Context) error {
	return b.until(ctx, func() bool { return len(b.srv.Stats(b.t, b.name).Subscriptions["sub"].Consumers) > 0 })
}

func (b *brokerModel) backlog() int {
	n := b.srv.Stats(b.t, b.name).Subscriptions["sub"].MsgBacklog
	if b.plan.consumer.Type == messaging.Shared && !b.plan.consumer.Retry.InPlace {
		n += b.srv.Stats(b.t, b.name+"-sub-RETRY").Subscriptions["sub"].MsgBacklog
	}
	return int(n)
}

// until asks the broker again and again: it tells nobody when its state changes.
func (*brokerModel) until(ctx context.Context, cond func() bool) error {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for !cond() {
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (b *brokerModel) log() ([]modelMessage, error) {
	err := b.read(b.name, func(d *messaging.Delivery) {
		b.all = append(b.all, modelMessage{
			modelRecord: modelRecord{key: d.Key, ordering: d.OrderingKey, payload: string(d.Payload)},
			id:          d.ID.String(), partition: d.Topic[strings.LastIndex(d.Topic, "/")+1:],
		})
	})
	return b.all, err
}

func (b *brokerModel) deadLetters() (map[string]bool, error) {
	out := make(map[string]bool)
	err := b.read(b.name+"-sub-DLQ", func(d *messaging.Delivery) { out[string(d.Payload)] = true })
	return out, err
}

// read goes through all that a topic holds.
func (b *brokerModel) read(topic string, see func(*messaging.Delivery)) error {
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription, cfg.Type, cfg.Order = []string{topic}, "log", messaging.Exclusive, messaging.OrderTotal
	c, err := b.direct.Consumer(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelLimit)
	defer cancel()
	_, err = c.Drain(ctx, func(_ context.Context, d *messaging.Delivery) error {
		see(d)
		return nil
	})
	return err
}

func (*brokerModel) clock() int              { return 0 }
func (*brokerModel) lapsed(*call) bool       { return false }
func (*brokerModel) moved(modelMessage) bool { return true }
func (*brokerModel) connected() []string     { return nil }
func (*brokerModel) trace() []string         { return nil }

func (b *brokerModel) close() error {
	if b.raw == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelLimit)
	defer cancel()
	return b.raw.Close(ctx)
}
