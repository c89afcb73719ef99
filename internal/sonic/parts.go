package sonic

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/apply"
	"github.com/aviaryhq/aviary/internal/sonic/outbox"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// library returns the configuration of the shard, which the function library gets.
func (c Config) library() redislib.Config {
	l := redislib.Config{Zone: c.Zone, Others: c.zones()[1:], Default: policyLWW, Bound: c.Outbox.bound()}
	for _, conflict := range c.Conflicts {
		if conflict.Prefix == "" {
			l.Default = conflict.Policy
		} else {
			l.Policies = append(l.Policies, redislib.Policy{Prefix: conflict.Prefix, Policy: conflict.Policy})
		}
	}
	return l
}

// counter returns a function that reports whether a key is a counter, or nil when no key is one.
func (c Config) counter() func(key []byte) bool {
	conflicts := slices.Clone(c.Conflicts)
	if !slices.ContainsFunc(conflicts, func(one Conflict) bool { return one.Policy == policyCounter }) {
		return nil
	}
	slices.SortStableFunc(conflicts, func(a, b Conflict) int { return len(b.Prefix) - len(a.Prefix) }) // the longest prefix counts
	return func(key []byte) bool {
		for _, one := range conflicts {
			if bytes.HasPrefix(key, []byte(one.Prefix)) {
				return one.Policy == policyCounter
			}
		}
		return false
	}
}

// proxy returns the configuration of the proxy.
func (c Config) proxy(b backend, log *zap.Logger) (proxy.Config, error) {
	users, err := c.users()
	if err != nil {
		return proxy.Config{}, err
	}
	p := proxy.Config{
		Backend: c.Redis.endpoint(b), Zones: c.zones(), Users: users, Limits: c.Limits.proxy(), Counter: c.counter(), Publish: c.Publish == publishReplicate,
		AckPublished: c.Ack == ackPublished,
	}
	p.Flush = map[string]proxy.Flush{flushZone: proxy.FlushZone, flushReplicate: proxy.FlushReplicated}[c.Flush]
	if c.TLS.enabled() {
		files, err := newCertificates(c.TLS, log)
		if err != nil {
			return proxy.Config{}, fmt.Errorf("tls: %w", err)
		}
		p.TLS = files.config()
	}
	return p, nil
}

func (c Config) shipper(databases string) outbox.Config {
	return outbox.Config{Zone: c.Zone, Topic: c.topicOf(c.Zone), Alone: c.isAlone(), Settings: c.sharedSettings(databases)}
}

// clusterShipper returns the configuration of the shipper in front of a Redis Cluster.
func (c Config) clusterShipper(p clusterProgress) outbox.ClusterConfig {
	return outbox.ClusterConfig{Config: c.shipper(""), Library: c.library(), Reached: p.reached, Horizon: p.horizon}
}

// maxClockSkew is how far another zone's clock may be ahead of this zone's before Sonic logs a warning.
const maxClockSkew = 500 * time.Millisecond

func (c Config) applier(origin, databases string) apply.Config {
	return apply.Config{Zone: c.Zone, Origin: origin, Topic: c.topicOf(origin), MaxClockSkew: maxClockSkew, Settings: c.sharedSettings(databases)}
}

// sharedSettings returns digests of the settings that must be equal in all zones. It does not
// contain the topic: zones with different topics never receive each other's messages. databases is
// the number of databases of this zone's Redis, empty if unknown, and with a Redis Cluster, which has
// one: its zone and one with a single Redis can be equal.
func (c Config) sharedSettings(databases string) string {
	l := c.library()
	conflicts := []string{l.Default + " "}
	for _, p := range l.Policies {
		conflicts = append(conflicts, p.Policy+" "+p.Prefix)
	}
	parts := map[string][]string{"zones": c.zones(), "conflicts": conflicts}
	if databases != "" {
		parts["databases"] = []string{databases}
	}
	return wire.Config(parts)
}

// databasesOf returns the number of databases of a Redis, empty if it does not say that: its user
// may not read the configuration.
func databasesOf(ctx context.Context, db *redis.Client) string {
	found, err := db.ConfigGet(ctx, "databases").Result()
	if err != nil {
		return ""
	}
	return found["databases"]
}
