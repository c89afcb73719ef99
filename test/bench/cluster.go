package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	admincfg "github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/proxy"
)

// cluster is a Pulsar that turns run at.
type cluster struct {
	config    messaging.Config
	client    *messaging.Client
	admin     pulsaradmin.Client // nil without an admin URL
	namespace string
	own       bool   // this program has started it
	gc        *gcLog // of a broker that this program has started
	journal   string // folder of the bookie's journal, if this program has started it
	remote    string // URL of the cluster to which it replicates; may be empty
	stops     []func()
}

// dial connects to the cluster of the configuration.
func dial(ctx context.Context, config messaging.Config, namespace string) (*cluster, error) {
	client, err := messaging.Dial(ctx, config)
	if err != nil {
		return nil, err
	}
	c := &cluster{config: config, client: client, namespace: namespace, stops: []func(){func() { _ = client.Close(ctx) }}}
	if config.AdminURL == "" {
		return c, nil
	}
	c.admin, err = pulsaradmin.NewClient(&pulsaradmin.Config{
		WebServiceURL: config.AdminURL, TLSTrustCertsFilePath: config.TLS.CAFile, TLSAllowInsecureConnection: config.TLS.Insecure,
		Token: config.Auth.Token.Reveal(), TokenFile: config.Auth.TokenFile, TLSCertFile: config.Auth.CertFile, TLSKeyFile: config.Auth.KeyFile,
		IssuerEndpoint: config.Auth.OAuth2.IssuerURL, Audience: config.Auth.OAuth2.Audience, Scope: config.Auth.OAuth2.Scope, KeyFile: config.Auth.OAuth2.KeyFile,
		PulsarAPIVersion: admincfg.V2,
	})
	return c, err
}

// start starts a broker with these settings, which ends with this process, and connects to it.
func start(ctx context.Context, name string, b workload.Broker) (*cluster, error) {
	gc, err := newGCLog()
	if err != nil {
		return nil, err
	}
	o := servers.Options{Name: name, Conf: b.Conf, Memory: b.Memory, GC: b.GC, JVM: gc.options(), Geo: b.Geo}
	stops := []func(){gc.remove}
	var broker *servers.Broker
	if b.AckDelayMs == 0 {
		broker, err = servers.StartBroker(ctx, o)
	} else {
		var line *proxy.Proxy
		if line, err = proxy.New(); err != nil {
			return nil, err
		}
		stops = append(stops, line.Close)
		if broker, err = servers.StartFarBroker(ctx, line, o); err == nil {
			err = line.Latency(time.Duration(b.AckDelayMs) * time.Millisecond)
		}
	}
	if broker != nil {
		stops = append(stops, broker.Stop)
	}
	var c *cluster
	if err == nil {
		config := messaging.DefaultConfig()
		config.URL, config.AdminURL, config.ListenerName = broker.Url, broker.Admin, broker.Listener
		c, err = dial(ctx, config, cmp.Or(broker.Namespace, "public/default"))
	}
	if err != nil {
		for _, stop := range stops {
			stop()
		}
		return nil, err
	}
	c.own, c.gc, c.journal, c.remote, c.stops = true, gc, broker.Journal, broker.Remote, append(c.stops, stops...)
	return c, nil
}

func (c *cluster) stop() {
	for _, stop := range c.stops {
		stop()
	}
}

// topics makes the topics of a workload, with the subscriptions.
func (c *cluster) topics(ctx context.Context, part string, w workload.Workload, subscriptions []string) ([]string, error) {
	if w.PartitionsPerTopic > 1 && c.admin == nil {
		return nil, fmt.Errorf("partitionsPerTopic: %d: needs pulsar.admin_url", w.PartitionsPerTopic)
	}
	base := fmt.Sprintf("persistent://%s/bench-%s-%s", c.namespace, part, rand.Text())
	names := make([]string, w.Topics)
	for i := range names {
		names[i] = base
		if w.Topics > 1 {
			names[i] = fmt.Sprintf("%s-%d", base, i)
		}
		if w.PartitionsPerTopic > 0 && c.admin != nil {
			if err := c.client.Topic(names[i]).Create(ctx, w.PartitionsPerTopic); err != nil {
				return nil, err
			}
		}
		for _, s := range subscriptions {
			if err := c.client.EnsureSubscription(ctx, names[i], s, messaging.StartEarliest); err != nil {
				return nil, err
			}
		}
	}
	return names, nil
}

// stored is how many messages the brokers have taken for the topics.
func (c *cluster) stored(ctx context.Context, topics []string, partitions int) (n int64, err error) {
	for _, topic := range topics {
		name, err := utils.GetTopicName(topic)
		if err != nil {
			return 0, err
		}
		if partitions > 0 {
			stats, err := c.admin.Topics().GetPartitionedStatsWithContext(ctx, *name, true)
			if err != nil {
				return 0, err
			}
			for _, p := range stats.Partitions {
				n += p.MsgCounterIn
			}
			continue
		}
		stats, err := c.admin.Topics().GetStatsWithContext(ctx, *name)
		if err != nil {
			return 0, err
		}
		n += stats.MsgCounterIn
	}
	return n, nil
}

// entries is how many entries the brokers have stored for the topics.
func (c *cluster) entries(ctx context.Context, topics []string, partitions int) (n int64, err error) {
	for _, topic := range topics {
		names := []string{topic}
		if partitions > 0 {
			names = nil
		}
		for p := range partitions {
			names = append(names, fmt.Sprintf("%s-partition-%d", topic, p))
		}
		for _, one := range names {
			name, err := utils.GetTopicName(one)
			if err != nil {
				return 0, err
			}
			stats, err := c.admin.Topics().GetInternalStatsWithContext(ctx, *name)
			if err != nil {
				return 0, err
			}
			n += stats.EntriesAddedCounter
		}
	}
	return n, nil
}

// remove deletes the topics: the next turn finds the brokers as this one did.
func (c *cluster) remove(ctx context.Context, topics []string, partitioned bool) {
	if c.admin == nil {
		return
	}
	for _, topic := range topics {
		if name, err := utils.GetTopicName(topic); err == nil {
			if err = c.admin.Topics().DeleteWithContext(ctx, *name, true, !partitioned); err != nil {
				fmt.Fprintf(os.Stderr, "bench: cannot delete %s: %v\n", topic, err)
			}
		}
	}
}

// at sets the address of a turn; the configuration's is the child's own.
func (c *cluster) at(t *load.Turn) {
	if c.own {
		t.URL, t.AdminURL, t.Listener = c.config.URL, c.config.AdminURL, c.config.ListenerName
		t.RemoteURL = c.remote
	}
}

// observer returns a function that adds the broker's metrics to the values of a second.
func (c *cluster) observer(metrics []workload.Metric) func(context.Context, map[string]float64) {
	last := map[string]float64{}
	var lastAt time.Time
	return func(ctx context.Context, values map[string]float64) {
		if len(metrics) == 0 || c.config.AdminURL == "" {
			return
		}
		families, err := servers.Metrics(ctx, strings.TrimSuffix(c.config.AdminURL, "/")+"/metrics/")
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: cannot read the broker's metrics:", err)
			return
		}
		now := time.Now()
		for _, m := range metrics {
			v := m.Sum(families)
			if m.Rate {
				if before, ok := last[m.Series]; ok {
					values[m.Series] = (v - before) / now.Sub(lastAt).Seconds()
				}
				last[m.Series] = v
			} else {
				values[m.Series] = v
			}
		}
		lastAt = now
	}
}
