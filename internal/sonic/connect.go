package sonic

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/sentinel"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Connect returns what -config.connect tries: this zone's Redis with its Sentinels, Pulsar with the
// topics of all zones, and the Redis of the peers. A zone that is alone uses no Pulsar with a Redis
// Cluster.
func Connect(cfg Config) (trials []trial.Trial, end func()) {
	disableClientLog()
	var all trial.List
	all.AddAll(cfg.Redis.try("redis", true))
	if !cfg.Redis.isCluster() || !cfg.isAlone() {
		all.Add(trial.Pulsar("pulsar", cfg.Pulsar, cfg.tryTopics))
	}
	for i, peer := range cfg.Peers {
		all.AddAll(peer.Redis.try(fmt.Sprintf("peers[%d].redis", i), false))
	}
	return all.Trials, all.End
}

// try returns the trials of a Redis: whether it can be the backend, and whether each Sentinel
// answers. path is the path of the section. own says that it is the zone's own Redis, whose rights
// and persistence are tried, too.
func (c RedisConfig) try(path string, own bool) (trials []trial.Trial, end func()) {
	if c.isCluster() {
		return c.tryCluster(path), func() {}
	}
	name := path + ".url " + c.url()
	b, err := c.backend(zap.NewNop())
	if err != nil {
		return []trial.Trial{trial.Of(name, err)}, func() {}
	}
	db, _ := b.control(nil, nil)
	asking, stop := context.WithCancel(context.Background())
	var asked sync.WaitGroup
	if s := b.sentinels; s != nil {
		asked.Go(func() { _ = s.Run(asking) })
		for i, address := range c.Sentinel.Addresses {
			trials = append(trials, trial.Trial{Name: fmt.Sprintf("%s.sentinel.addresses[%d] %s", path, i, address), Try: func(ctx context.Context) error {
				_, err := s.Ask(ctx, address)
				return err
			}})
		}
		name = fmt.Sprintf("%s.sentinel.master %s, the Redis that it names", path, c.Sentinel.Master)
	}
	fit := func(ctx context.Context) error {
		finding, cancel := context.WithTimeout(ctx, 2*sentinel.Timeout)
		defer cancel()
		if _, err := b.resolve(finding); err != nil {
			return err
		}
		return checkRedis(ctx, db)
	}
	var then []trial.Trial
	if own {
		then = []trial.Trial{
			{Name: path + ": functions", Try: func(ctx context.Context) error { return tryFunctions(ctx, db) }},
			{Name: path + ": appendonly", Try: func(ctx context.Context) error { return tryAppendOnly(ctx, db) }},
		}
	}
	return append(trials, trial.Trial{Name: name, Try: fit, Then: then}), func() {
		stop()
		asked.Wait()
		_ = db.Close() // the process ends
	}
}

// tryFunctions returns why Sonic could not load and use the library. It changes nothing: its
// commands are invalid on purpose (a malformed library, functions that do not exist, an entry with
// a malformed id). Redis checks the user's permissions first, so NOPERM shows what is not allowed.
func tryFunctions(ctx context.Context, db *redis.Client) error {
	const none = "aviary_none"
	own := script.KeysOf(0).Outbox
	for _, one := range []struct {
		what    string
		command []any
	}{
		{"load functions", []any{"FUNCTION", "LOAD", "#!none name=sonic\n"}},
		{"call functions with Sonic's own keys, which begin with {sonic:", []any{"FCALL", none, 1, own}},
		{"call functions that only read", []any{"FCALL_RO", none, 1, own}},
		{"write to Sonic's own keys, which begin with {sonic:", []any{"XADD", own, "NOMKSTREAM", "nowhere", "f", "v"}},
	} {
		err := db.Do(ctx, one.command...).Err()
		switch {
		case err == nil, strings.HasPrefix(err.Error(), "ERR "):
		case strings.HasPrefix(err.Error(), "NOPERM "):
			return fmt.Errorf("this user may not %s: %w", one.what, err)
		case strings.HasPrefix(err.Error(), "OOM "):
			return trial.Notef("Redis is full: cannot check whether this user may %s (%s)", one.what, err)
		default:
			return err
		}
	}
	return nil
}

func tryAppendOnly(ctx context.Context, db *redis.Client) error {
	text, err := db.Info(ctx, "persistence").Result()
	if err == nil && infoOf(text)["aof_enabled"] == "0" {
		err = trial.Note("off: after a crash of Redis, Sonic can restore only effects that the topic has; effects that were not shipped are lost")
	}
	return err
}

// tryTopics returns the trials of the zones' topics, and of the settings of their namespace.
func (c Config) tryTopics(client *messaging.Client) []trial.Trial {
	namespace := client.Topic(c.Topic).Namespace().Name()
	var all []trial.Trial
	if c.Pulsar.AdminURL == "" {
		all = append(all, trial.Of("pulsar.admin_url",
			trial.Note("not set: Sonic cannot check that the namespace has deduplication and retention, which it needs")))
	} else {
		all = append(all, trial.Admin(client, "pulsar", c.Pulsar.AdminURL, c.topicOf(c.Zone))...)
		all = append(all, trial.NewNamespace(client, "topic: namespace", namespace).Policies(true,
			"without it Pulsar can store an effect twice or late",
			"a Redis that starts with older data may not get its lost effects back, and then accepts no writes")...)
	}
	all = append(all, trial.Publish(client, "topic of this zone", c.topicOf(c.Zone)))
	zones := c.zones()
	if len(zones) == 1 {
		return append(all, trial.Of("zones", trial.Note("this zone is alone: it reads no topic")))
	}
	for _, zone := range zones {
		all = append(all, trial.Consume(client, "topic of zone "+zone+", to read", c.topicOf(zone)))
	}
	return all
}

// tryCluster returns the trials of a Redis Cluster: each address of url, the state of the cluster,
// and its primaries. path is the path of the section.
func (c RedisConfig) tryCluster(path string) []trial.Trial {
	b, err := c.backend(zap.NewNop())
	if err != nil {
		return []trial.Trial{trial.Of(path+".url "+c.url(), err)}
	}
	var all []trial.Trial
	for _, address := range b.nodes {
		all = append(all, trial.Trial{Name: path + ".url, node " + address, Try: func(ctx context.Context) error {
			return b.checkNode(ctx, address, false)
		}})
	}
	return append(all,
		trial.Trial{Name: path + ": state of the cluster", Try: func(ctx context.Context) error {
			return b.askNodes(ctx, func(_ string, db *redis.Client) error { return tryClusterState(ctx, db) })
		}},
		trial.Trial{Name: path + ": primaries of the cluster", Try: func(ctx context.Context) error {
			return b.askNodes(ctx, func(address string, db *redis.Client) error {
				m, err := cluster.Ask(ctx, db, address)
				if err != nil {
					return err
				}
				unsuitable, unknown := b.checkNodes(ctx, m.Addresses(), true)
				return errors.Join(append(unsuitable, unknown...)...)
			})
		}})
}

// askNodes puts a question to the first node of a Redis Cluster that answers.
func (b backend) askNodes(ctx context.Context, question func(address string, db *redis.Client) error) error {
	var errs []error
	for _, address := range b.nodes {
		db := b.nodeClient(address)
		defer func() { _ = db.Close() }()
		err := db.Ping(ctx).Err()
		var refused redis.Error
		if err == nil || errors.As(err, &refused) {
			return question(address, db)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tryClusterState returns an error unless all slots are served.
func tryClusterState(ctx context.Context, db *redis.Client) error {
	text, err := db.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	if info := infoOf(text); info["cluster_state"] != "ok" || info["cluster_slots_ok"] != strconv.Itoa(cluster.Slots) {
		return fmt.Errorf("it is %q: %s of %d slots have a primary, and %s of them are served",
			info["cluster_state"], info["cluster_slots_assigned"], cluster.Slots, info["cluster_slots_ok"])
	}
	return nil
}
