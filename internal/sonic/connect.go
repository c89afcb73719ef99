package sonic

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Connect returns what -config.connect tries: this zone's Redis with its Sentinels, Pulsar with the topics of all zones, and the Redis of the peers.
func Connect(cfg Config) (trials []trial.Trial, end func()) {
	quiet()
	trials, endRedis := cfg.Redis.try("redis", func(db *redis.Client) []trial.Trial {
		return []trial.Trial{
			{Name: "redis: functions", Try: func(ctx context.Context) error { return tryFunctions(ctx, db) }},
			{Name: "redis: appendonly", Try: func(ctx context.Context) error { return tryAppendOnly(ctx, db) }},
		}
	})
	pulsar, endPulsar := trial.Pulsar("pulsar", cfg.Pulsar, cfg.tryTopics)
	trials = append(trials, pulsar)
	ends := []func(){endRedis, endPulsar}
	for i, peer := range cfg.Peers {
		other, end := peer.Redis.try(fmt.Sprintf("peers[%d].redis", i), func(*redis.Client) []trial.Trial { return nil })
		trials, ends = append(trials, other...), append(ends, end)
	}
	return trials, trial.Ends(ends...)
}

// try has what finds out whether the Redis is fit, and what each Sentinel says; path is the section's.
func (c RedisConfig) try(path string, then func(*redis.Client) []trial.Trial) (trials []trial.Trial, end func()) {
	c.ConnectTimeout = min(c.ConnectTimeout, trial.Timeout)
	name := path + ".url " + c.url()
	b, err := c.backend(zap.NewNop())
	if err != nil {
		return []trial.Trial{trial.Of(name, err)}, func() {}
	}
	db, _ := c.control(b, nil, nil)
	asking, stop := context.WithCancel(context.Background())
	asked := make(chan struct{})
	if s := b.sentinels; s == nil {
		close(asked)
	} else {
		go func() {
			defer close(asked)
			_ = s.Run(asking)
		}()
		for i, address := range c.Sentinel.Addresses {
			trials = append(trials, trial.Trial{Name: fmt.Sprintf("%s.sentinel.addresses[%d] %s", path, i, address), Try: func(ctx context.Context) error {
				_, err := s.Ask(ctx, address)
				return err
			}})
		}
		name = fmt.Sprintf("%s.sentinel.master %s, the Redis that it names", path, c.Sentinel.Master)
	}
	fit := func(ctx context.Context) error {
		finding, cancel := context.WithTimeout(ctx, 2*sentinelTimeout)
		defer cancel()
		if _, err := b.resolve(finding); err != nil {
			return err
		}
		return checkRedis(ctx, db)
	}
	return append(trials, trial.Trial{Name: name, Try: fit, Then: then(db)}), func() {
		stop()
		<-asked
		_ = db.Close() // the process ends
	}
}

// tryFunctions returns why the library cannot be loaded. It has one refused that cannot be one.
func tryFunctions(ctx context.Context, db *redis.Client) error {
	err := db.Do(ctx, "FUNCTION", "LOAD", "#!none name=sonic\n").Err()
	if err == nil || strings.HasPrefix(err.Error(), "ERR ") {
		return nil
	}
	return fmt.Errorf("this user may not load them: %w", err)
}

func tryAppendOnly(ctx context.Context, db *redis.Client) error {
	text, err := db.Info(ctx, "persistence").Result()
	if err == nil && infoOf(text)["aof_enabled"] == "0" {
		err = trial.Note("no: what Redis loses in a crash comes back from the topic only as far as that has it, and what was not shipped is lost")
	}
	return err
}

// tryTopics has the topics that the zones write, and what their namespace has to keep.
func (c Config) tryTopics(client *messaging.Client) []trial.Trial {
	namespace := namespaceOf(c.Topic)
	var all []trial.Trial
	if c.Pulsar.AdminURL == "" {
		all = append(all, trial.Of("pulsar.admin_url",
			trial.Note("not set: it is not known whether the namespace has deduplication and retention, which Sonic needs")))
	} else {
		all = append(all, trial.Admin(client, "pulsar", c.Pulsar.AdminURL, c.topicOf(c.Zone))...)
		all = append(all, trial.Namespace(client, "topic: namespace", namespace, true,
			"Sonic needs it, or an effect can be stored twice or late",
			"a Redis that comes back older than it was may not get back what it lost, and takes no writes then")...)
	}
	zones := c.zones()
	if len(zones) == 1 {
		return append(all, trial.Of("zones", trial.Note("this zone is alone: it stores nothing in Pulsar")))
	}
	all = append(all, trial.Publish(client, "topic of this zone", c.topicOf(c.Zone)))
	for _, zone := range zones {
		all = append(all, trial.Consume(client, "topic of zone "+zone+", to read", c.topicOf(zone)))
	}
	return all
}
