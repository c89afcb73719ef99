package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	admincfg "github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// cluster is a Pulsar cluster on which turns run.
type cluster struct {
	config    messaging.Config
	client    *messaging.Client
	admin     pulsaradmin.Client // nil without an admin URL
	namespace string
	own       bool         // this program started it
	environ   []string     // of child processes: names a cluster that this program started
	gc        *gcLog       // nil if another program started the broker, and with geo-replication
	journal   string       // folder of the bookie's journal; empty if another program started it
	remote    string       // URL of the cluster to which it replicates; empty without geo-replication
	line      *proxy.Proxy // between the clients and the broker, which can cut and delay it; may be nil
	stops     []func()
}

// dial connects to the cluster of the configuration.
func (c *cluster) dial(ctx context.Context, config messaging.Config, namespace string) (err error) {
	if config.Auth.OAuth2 != (messaging.OAuth2{}) {
		return errors.New("pulsar.auth.oauth2: not supported here: use a token or a client certificate")
	}
	c.config, c.namespace = config, namespace
	if c.client, err = messaging.Dial(ctx, config); err != nil {
		return err
	}
	c.stops = append(c.stops, func() { _ = c.client.Close(ctx) })
	if config.AdminURL == "" {
		return nil
	}
	c.admin, err = pulsaradmin.NewClient(&pulsaradmin.Config{
		WebServiceURL: config.AdminURL, TLSTrustCertsFilePath: config.TLS.CAFile, TLSAllowInsecureConnection: config.TLS.Insecure,
		Token: config.Auth.Token.Reveal(), TokenFile: config.Auth.TokenFile,
		TLSCertFile: config.Auth.CertFile, TLSKeyFile: config.Auth.KeyFile, PulsarAPIVersion: admincfg.V2,
	})
	return err
}

// start starts a broker with these settings and connects to it. If it is far, clients reach it
// through the proxy c.line. The broker ends with this process.
func start(ctx context.Context, name string, b workload.Broker, far bool) (_ *cluster, err error) {
	c := &cluster{own: true}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	cfg := stack.Config{Checkout: name, PulsarConf: b.Conf, PulsarMemory: b.Memory, PulsarGC: b.GC}
	service := "pulsar-geo"
	if !b.Geo {
		service = "pulsar"
		if c.gc, err = newGCLog(); err != nil { // two brokers would write to one file
			return nil, err
		}
		c.stops = append(c.stops, c.gc.remove)
		cfg.PulsarJVM = c.gc.options()
	}
	if far {
		if c.line, err = proxy.New(); err != nil {
			return nil, err
		}
		c.stops = append(c.stops, c.line.Close)
		direct, _, err := servers.TwoAddresses()
		if err != nil {
			return nil, err
		}
		cfg.PulsarPort = int(netip.MustParseAddrPort(direct).Port())
		cfg.PulsarConf = map[string]string{
			"advertisedListeners":  "direct:pulsar://" + direct + "," + proxy.Listener + ":pulsar://" + c.line.Addr(),
			"internalListenerName": "direct",
		}
		maps.Copy(cfg.PulsarConf, b.Conf)
	}
	values, dir, stop, err := up(ctx, cfg, service)
	if err != nil {
		return nil, err
	}
	c.stops = append(c.stops, stop)
	c.journal, c.remote = filepath.Join(dir, "pulsar", "bookkeeper"), values["PULSAR_B_URL"]
	config := messaging.DefaultConfig()
	config.URL = cmp.Or(values["PULSAR_URL"], values["PULSAR_A_URL"])
	config.AdminURL = cmp.Or(values["PULSAR_ADMIN_URL"], values["PULSAR_A_ADMIN_URL"])
	if far {
		err := errors.Join(c.line.Forward(config.URL), c.line.Latency(time.Duration(b.AckDelayMs)*time.Millisecond))
		if err != nil {
			return nil, err
		}
		config.URL, config.ListenerName = "pulsar://"+c.line.Addr(), proxy.Listener
	}
	c.environ = []string{
		"BENCH_PULSAR_URL=" + config.URL, "BENCH_PULSAR_ADMIN_URL=" + config.AdminURL, "BENCH_PULSAR_LISTENER_NAME=" + config.ListenerName,
	}
	return c, c.dial(ctx, config, cmp.Or(values["PULSAR_GEO_NAMESPACE"], defaultNamespace))
}

// stop stops what was started, the last first.
func (c *cluster) stop() {
	for _, stop := range slices.Backward(c.stops) {
		stop()
	}
}

// plainName is a name with only what topics and files take.
func plainName(name string) string {
	return regexp.MustCompile(`[^A-Za-z0-9_.-]+`).ReplaceAllString(name, "-")
}

// topics creates the topics of a workload and their subscriptions. With an error it returns those
// that may exist.
func (c *cluster) topics(ctx context.Context, part string, w workload.Workload, subscriptions []string) ([]string, error) {
	var names []string
	if w.PartitionsPerTopic > 1 && c.admin == nil {
		return nil, fmt.Errorf("partitionsPerTopic: %d: needs pulsar.admin_url", w.PartitionsPerTopic)
	}
	base := newTopic(c.namespace, part)
	for i := range w.Topics {
		name := fmt.Sprintf("%s-%d", base, i)
		names = append(names, name)
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

// stored is what the brokers have stored in topics.
type stored struct {
	messages, entries, bytes int64
	// complete is false if a topic has moved to another broker or was loaded again: its counters then
	// began anew.
	complete bool
}

func (c *cluster) stored(ctx context.Context, topics []string, partitions int) (stored, error) {
	all := stored{complete: true}
	for _, topic := range topics {
		for p := range max(partitions, 1) {
			one := topic
			if partitions > 0 {
				one = fmt.Sprintf("%s-partition-%d", topic, p)
			}
			name, err := utils.GetTopicName(one)
			if err != nil {
				return all, err
			}
			stats, err1 := c.admin.Topics().GetStatsWithContext(ctx, *name)
			internal, err2 := c.admin.Topics().GetInternalStatsWithContext(ctx, *name)
			if err := errors.Join(err1, err2); err != nil {
				return all, err
			}
			all.complete = all.complete && internal.EntriesAddedCounter >= internal.NumberOfEntries
			all.messages, all.entries = all.messages+stats.MsgCounterIn, all.entries+internal.EntriesAddedCounter
			all.bytes += stats.StorageSize
		}
	}
	return all, nil
}

// count adds figures of what the brokers have stored in the topics of a turn. Without complete
// counters it adds none: the page says that nothing was counted.
func (c *cluster) count(ctx context.Context, topics []string, partitions int, into map[string]float64) error {
	all, err := c.stored(ctx, topics, partitions)
	if err != nil || !all.complete {
		return err
	}
	messages, acknowledged := float64(all.messages), into["acknowledged"]
	into["lost_at_broker"] = max(acknowledged-messages, 0)
	into["stored_again"] = max(messages-acknowledged-into["failed"]-into["aborted_messages"], 0)
	into["entries_s"] = float64(all.entries) / max(acknowledged, 1) * into["publish_msg_s"]
	return nil
}

// remove deletes the topics, so that every turn begins with empty brokers.
func (c *cluster) remove(ctx context.Context, topics []string, partitioned bool) {
	if c.admin == nil {
		return
	}
	for _, topic := range topics {
		if name, err := utils.GetTopicName(topic); err == nil {
			if err = c.admin.Topics().DeleteWithContext(context.WithoutCancel(ctx), *name, true, !partitioned); err != nil {
				fmt.Fprintf(os.Stderr, "bench: cannot delete %s: %v\n", topic, err)
			}
		}
	}
}
