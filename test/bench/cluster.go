package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"regexp"
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

// cluster is a Pulsar cluster on which turns run.
type cluster struct {
	config    messaging.Config
	client    *messaging.Client
	admin     pulsaradmin.Client // nil without an admin URL
	namespace string
	own       bool   // this program started it
	gc        *gcLog // nil if another program started the broker
	journal   string // folder of the bookie's journal; empty if another program started it
	remote    string // URL of the cluster to which it replicates; empty without geo-replication
	stops     []func()
}

// dial connects to the cluster of the configuration.
func dial(ctx context.Context, config messaging.Config, namespace string) (*cluster, error) {
	if config.Auth.OAuth2 != (messaging.OAuth2{}) {
		return nil, errors.New("pulsar.auth.oauth2: not supported here: use a token or a client certificate")
	}
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
		PulsarAPIVersion: admincfg.V2,
	})
	return c, err
}

// start starts a broker with these settings and connects to it. The broker ends with this process.
func start(ctx context.Context, name string, b workload.Broker) (*cluster, error) {
	gc, err := newGCLog()
	if err != nil {
		return nil, err
	}
	o := servers.Options{Name: name, Conf: b.Conf, Memory: b.Memory, GC: b.GC, Geo: b.Geo}
	if !b.Geo { // two brokers would write to one file
		o.JVM = gc.options()
	}
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
	if b.Geo {
		gc = nil
	}
	c.own, c.gc, c.journal, c.remote, c.stops = true, gc, broker.Journal, broker.Remote, append(c.stops, stops...)
	return c, nil
}

func (c *cluster) stop() {
	for _, stop := range c.stops {
		stop()
	}
}

// plainName is a name with only what topics and files take.
func plainName(name string) string {
	return regexp.MustCompile(`[^A-Za-z0-9_.-]+`).ReplaceAllString(name, "-")
}

// topics creates the topics of a workload and their subscriptions.
func (c *cluster) topics(ctx context.Context, part string, w workload.Workload, subscriptions []string) ([]string, error) {
	if w.PartitionsPerTopic > 1 && c.admin == nil {
		return nil, fmt.Errorf("partitionsPerTopic: %d: needs pulsar.admin_url", w.PartitionsPerTopic)
	}
	base := fmt.Sprintf("persistent://%s/bench-%s-%s", c.namespace, plainName(part), rand.Text())
	names := make([]string, 0, w.Topics)
	for i := range w.Topics {
		name := base
		if w.Topics > 1 {
			name = fmt.Sprintf("%s-%d", base, i)
		}
		names = append(names, name) // those that exist are returned with an error, too
		if w.PartitionsPerTopic > 0 && c.admin != nil {
			if err := c.client.Topic(name).Create(ctx, w.PartitionsPerTopic); err != nil {
				return names, err
			}
		}
		for _, s := range subscriptions {
			if err := c.client.EnsureSubscription(ctx, name, s, messaging.StartEarliest); err != nil {
				return names, err
			}
		}
	}
	return names, nil
}

// stored returns how many messages the brokers have stored in the topics.
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

// entries returns how many entries (batches) the brokers have stored in the topics. complete is
// false if a topic has moved to another broker, or was loaded again: its counters then began anew.
func (c *cluster) entries(ctx context.Context, topics []string, partitions int) (n int64, complete bool, err error) {
	complete = true
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
				return 0, false, err
			}
			stats, err := c.admin.Topics().GetInternalStatsWithContext(ctx, *name)
			if err != nil {
				return 0, false, err
			}
			n += stats.EntriesAddedCounter
			complete = complete && stats.EntriesAddedCounter >= stats.NumberOfEntries
		}
	}
	return n, complete, nil
}

// remove deletes the topics, so that every turn begins with empty brokers.
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

// setAddress sets the address of a turn, if this program started the broker. Otherwise the child
// process reads it from its own configuration.
func (c *cluster) setAddress(t *load.Turn) {
	if c.own {
		t.URL, t.AdminURL, t.Listener = c.config.URL, c.config.AdminURL, c.config.ListenerName
		t.RemoteURL = c.remote
	}
}

// observer returns a function that adds the broker's current metrics to the values of a sample.
func (c *cluster) observer(metrics []workload.Metric) func(context.Context, map[string]float64) {
	last := map[string]float64{}
	var lastAt time.Time
	return func(ctx context.Context, values map[string]float64) {
		if len(metrics) == 0 || !c.own { // a cluster has several brokers
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
