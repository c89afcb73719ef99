package sonic

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config is the configuration of sonic.
type Config struct {
	app.Common `yaml:",inline"`
	// Listen is the address that Redis clients connect to: host:port; port 0 lets the system
	// choose. Default 127.0.0.1:6380.
	Listen string `yaml:"listen"`
	// TLS encrypts the connections of clients. Default: off.
	TLS TLSConfig `yaml:"tls"`
	// Users are the users that may log in with AUTH or HELLO. With at least one user, every client
	// must log in. Default: none; every client is the user "default", without a password.
	Users []User `yaml:"users"`
	// Limits of clients.
	Limits Limits `yaml:"limits"`
	// Redis says how to reach this zone's primary.
	Redis RedisConfig `yaml:"redis"`
	// Pulsar is this zone's cluster. The clusters of the other zones replicate to it.
	Pulsar messaging.Config `yaml:"pulsar"`
	// Zone is this zone's name. Default: default.
	Zone string `yaml:"zone"`
	// Zones are the names of all zones, including this one. Default: only this zone.
	Zones []string `yaml:"zones"`
	// Topic is the prefix of the topics' names: each zone writes to <topic>-<zone>-0 and reads the
	// topics of the other zones. Default persistent://public/default/sonic.
	Topic string `yaml:"topic"`
	// Ack says when Sonic answers a write: local, once its effect is in the outbox; published, once
	// Pulsar has stored the effect. A zone without other zones stores nothing in Pulsar: both values
	// mean the same there. Default local.
	Ack string `yaml:"ack"`
	// Conflicts sets, by prefixes of keys, how Sonic resolves writes of several zones to one key. The
	// longest prefix that matches counts. Default: lww for all keys.
	Conflicts []Conflict `yaml:"conflicts"`
	// Publish says which subscribers get a message of PUBLISH: relay, those of this zone; replicate,
	// those of all zones. With replicate PUBLISH is a write. Default relay.
	Publish string `yaml:"publish"`
	// Flush says what FLUSHDB and FLUSHALL do: refuse, Sonic refuses them; zone, they delete this
	// zone's keys; replicate, they delete the keys of all zones. With policy counter in conflicts Sonic
	// always refuses them. Default refuse.
	Flush string `yaml:"flush"`
	// Outbox sets bounds for the effects that Pulsar has not stored yet.
	Outbox OutboxConfig `yaml:"outbox"`
	// Peers are the Redis servers of other zones. Only the commands -check, -repair and -bootstrap
	// use them. Default: none.
	Peers []Peer `yaml:"peers"`
	// Setup says what -setup creates at Pulsar. Nothing else uses it.
	Setup SetupConfig `yaml:"setup"`
	// Command comes from the command line only, see Flags.
	Command Command `yaml:"-"`
}

// Values of Ack.
const (
	ackLocal     = "local"
	ackPublished = "published"
)

// Values of Publish.
const (
	publishRelay     = "relay"
	publishReplicate = "replicate"
)

// Values of Flush.
const (
	flushRefuse    = "refuse"
	flushZone      = "zone"
	flushReplicate = "replicate"
)

// Policies for conflicts.
const (
	policyLWW     = "lww"     // the last write wins, ordered by a hybrid logical clock
	policyNone    = "none"    // effects are applied in the order of arrival: for keys that only one zone writes
	policyCounter = "counter" // increments of all zones add up
)

// What happens to writes when the outbox is full.
const (
	fullBlock = "block" // they wait
	fullFail  = "fail"  // they get an error
	fullDrop  = "drop"  // their effects are dropped; the state of the changed keys is shipped later
)

// Peer says how to reach another zone's Redis.
type Peer struct {
	// Zone is the other zone's name.
	Zone string `yaml:"zone"`
	// Redis says how to reach that zone's primary.
	Redis RedisConfig `yaml:"redis"`
}

// Conflict is the policy of the keys that begin with Prefix.
type Conflict struct {
	// Prefix of the keys; empty: all keys that no other prefix matches.
	Prefix string `yaml:"prefix"`
	// Policy is lww, the newest write wins; none, effects are applied as they arrive; or counter,
	// increments of all zones add up. Default lww.
	Policy string `yaml:"policy"`
}

// OutboxConfig bounds the stream in Redis in which effects wait until Pulsar has stored them. A
// write and its effect are one atomic step.
type OutboxConfig struct {
	// Bytes is the maximum memory of the outbox in Redis. At a quarter more, or 16MiB where that is
	// more, Redis itself refuses writes. Default 256MiB.
	Bytes config.Bytes `yaml:"bytes"`
	// Age is the maximum age of the oldest effect in the outbox; 0s: no limit. Default 0s.
	Age time.Duration `yaml:"age"`
	// Full says what Sonic does with writes while a bound is exceeded: block, they wait; fail, they get
	// an error; drop, Redis executes them, and Sonic replicates the state of the changed keys once the
	// outbox has room again. Default block.
	Full string `yaml:"full"`
}

// DefaultConfig returns the defaults. They suffice where Redis and Pulsar run on this machine.
func DefaultConfig() Config {
	return Config{
		Common:  app.DefaultCommon("127.0.0.1:9303"),
		Listen:  "127.0.0.1:6380",
		Limits:  defaultLimits(),
		Redis:   defaultRedis(),
		Pulsar:  messaging.DefaultConfig(),
		Zone:    "default",
		Topic:   "persistent://public/default/sonic",
		Ack:     ackLocal,
		Publish: publishRelay,
		Flush:   flushRefuse,
		Outbox:  OutboxConfig{Bytes: 256 * config.MiB, Full: fullBlock},
		Setup:   SetupConfig{Policies: setup.Defaults()},
	}
}

// Validate checks the top-level keys, and what depends on several sections. Each section validates
// itself.
func (c Config) Validate() error {
	var users, prefixes, peers []string
	for _, u := range c.Users {
		users = append(users, u.Name)
	}
	for _, conflict := range c.Conflicts {
		prefixes = append(prefixes, conflict.Prefix)
	}
	errs := []error{
		config.CheckListen("listen", c.Listen),
		config.CheckApart("listen", c.Listen, "admin.listen", c.Admin.Listen),
		checkUnique("users", ".name", users),
		config.Require(validZone(c.Zone), "zone", "must be %s, got %q", zoneRule, c.Zone),
		checkUnique("zones", "", c.Zones),
		config.Require(len(c.Zones) == 0 || slices.Contains(c.Zones, c.Zone), "zones", "must hold this zone, %q, too", c.Zone),
		config.Require(messaging.ValidTopic(c.Topic) && !strings.HasPrefix(c.Topic, "non-persistent://"),
			"topic", "must be a name or persistent://tenant/namespace/name, got %q", c.Topic),
		config.CheckOneOf("ack", c.Ack, ackLocal, ackPublished),
		checkUnique("conflicts", ".prefix", prefixes),
		config.CheckOneOf("publish", c.Publish, publishRelay, publishReplicate),
		config.CheckOneOf("flush", c.Flush, flushRefuse, flushZone, flushReplicate),
		config.Require(c.Ack != ackPublished || c.Outbox.Full != fullDrop,
			"outbox.full", "must not be drop with ack published: Sonic answers a write only after Pulsar has stored its effect"),
		c.Setup.RefuseEviction("setup"),
		c.checkCluster(),
	}
	for i, zone := range c.Zones {
		errs = append(errs, config.Require(validZone(zone), fmt.Sprintf("zones[%d]", i), "must be %s, got %q", zoneRule, zone))
	}
	for i, peer := range c.Peers {
		peers = append(peers, peer.Zone)
		errs = append(errs, config.Require(peer.Zone != c.Zone && slices.Contains(c.Zones, peer.Zone),
			fmt.Sprintf("peers[%d].zone", i), "must be another one of zones, got %q", peer.Zone))
	}
	return errors.Join(append(errs, checkUnique("peers", ".zone", peers))...)
}

// checkUnique returns a fault for each value of a list that the list has before. The path of a value
// is list[i]key.
func checkUnique(list, key string, values []string) error {
	var errs []error
	for i, value := range values {
		j := slices.Index(values, value)
		errs = append(errs, config.Require(j == i, fmt.Sprintf("%s[%d]%s", list, i, key), "must be unique, %q is that of %s[%d] too", value, list, j))
	}
	return errors.Join(errs...)
}

// checkCluster returns a fault for each key that does not go with a Redis Cluster.
func (c Config) checkCluster() error {
	if !c.Redis.isCluster() {
		return nil
	}
	isDefault := func(one Conflict) bool { return one == Conflict{Policy: policyLWW} }
	errs := []error{
		config.Require(c.Publish == publishRelay, "publish", "must be relay in front of a Redis Cluster: Sonic does not support messages to other zones there"),
	}
	if c.isAlone() {
		return errors.Join(append(errs, config.Require(!slices.ContainsFunc(c.Conflicts, func(one Conflict) bool { return !isDefault(one) }),
			"conflicts", "must be lww for all keys in front of a Redis Cluster without other zones: Sonic replicates nothing there"))...)
	}
	return errors.Join(append(errs,
		config.Require(c.Ack == ackLocal, "ack", "must be local in front of a Redis Cluster with other zones: Sonic does not support published there"),
		config.Require(c.Flush == flushRefuse, "flush", "must be refuse in front of a Redis Cluster with other zones: Sonic does not support FLUSHDB and FLUSHALL there"),
		config.Require(c.Outbox.Full != fullDrop, "outbox.full", "must be block or fail in front of a Redis Cluster: Sonic does not support drop there"),
		config.Require(c.Outbox.Age <= 0, "outbox.age", "must be 0 in front of a Redis Cluster: only outbox.bytes bounds its outbox"))...)
}

// zoneRule describes a valid zone name. The name is part of the names of topics and of stored
// versions.
const zoneRule = "letters, digits, '-' and '_', at most 32 of them"

func validZone(name string) bool {
	return regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`).MatchString(name)
}

// statePrefix begins the names of Sonic's own keys.
const statePrefix = "{sonic:"

// checkNotOwn returns a fault for a prefix of Sonic's own keys.
func checkNotOwn(path, prefix string) error {
	return config.Require(!strings.HasPrefix(prefix, statePrefix),
		path, "must not begin with %s, which begins the names of Sonic's own keys, got %q", statePrefix, prefix)
}

// Validate returns every fault of the entry.
func (c Conflict) Validate() error {
	return errors.Join(
		config.CheckOneOf("policy", c.Policy, policyLWW, policyNone, policyCounter),
		checkNotOwn("prefix", c.Prefix),
	)
}

// SetDefaults is called before the entry is decoded.
func (c *Conflict) SetDefaults() { c.Policy = policyLWW }

// SetDefaults is called before the entry is decoded.
func (p *Peer) SetDefaults() {
	p.Redis = defaultRedis()
	p.Redis.URL = "" // no default is right for another zone
}

// Validate returns every fault of the section.
func (c OutboxConfig) Validate() error {
	return errors.Join(
		config.CheckOneOf("full", c.Full, fullBlock, fullFail, fullDrop),
		config.CheckAtLeast("bytes", c.Bytes, config.MiB),
		config.Require(c.Age >= 0, "age", "must be >= 0, got %s", c.Age),
	)
}

// zones returns all zones, this one first.
func (c Config) zones() []string {
	all := []string{c.Zone}
	for _, zone := range c.Zones {
		if zone != c.Zone {
			all = append(all, zone)
		}
	}
	return all
}

// isAlone reports whether there is no other zone.
func (c Config) isAlone() bool { return len(c.zones()) == 1 }

// topicOf returns the topic that stores a zone's effects.
func (c Config) topicOf(zone string) string { return c.Topic + "-" + zone + "-0" }
