package sonic

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
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
	// Ack says when Sonic answers a write. local: when Redis has executed it and has its effect in
	// the outbox. published: when Pulsar, too, has stored the effect. A zone without other zones
	// stores nothing in Pulsar: there both values mean the same. Default local.
	Ack string `yaml:"ack"`
	// Conflicts says, by prefixes of keys, how Sonic resolves writes of several zones to one key.
	// The longest prefix that matches counts. Default: lww for all keys.
	Conflicts []Conflict `yaml:"conflicts"`
	// Publish says which subscribers get what PUBLISH sends. relay: those of this zone. replicate:
	// those of all zones; PUBLISH is then a write. Default relay.
	Publish string `yaml:"publish"`
	// Flush says what FLUSHDB and FLUSHALL do. refuse: they are refused. zone: they delete this zone's
	// keys; other zones keep theirs, and the zones differ until the keys are written again. replicate:
	// they delete the keys that any zone has; what another zone writes at the same time stays when it
	// is newer. Where counter keys are possible, both are refused always. Default refuse.
	Flush string `yaml:"flush"`
	// Outbox sets bounds for the effects that Pulsar has not stored yet.
	Outbox OutboxConfig `yaml:"outbox"`
	// Peers are the Redis servers of other zones. Only the commands -check, -repair and -bootstrap
	// use them. Default: none.
	Peers []Peer `yaml:"peers"`
	// MaxClockSkew is how far another zone's clock may be ahead of this zone's before Sonic logs a
	// warning. Default 500ms.
	MaxClockSkew time.Duration `yaml:"max_clock_skew"`
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

// RedisConfig says how to reach the zone's Redis.
type RedisConfig struct {
	// URL is redis://[[user]:password@]host[:port], or rediss:// for TLS. Several addresses,
	// separated by commas, are nodes of a Redis Cluster: redis://user:password@a:6379,b:6379. Sonic
	// finds the other nodes by itself. With Sentinels it must name no host: redis://, rediss://,
	// redis://user:password@. Default redis://127.0.0.1:6379; with Sentinels redis://.
	URL string `yaml:"url"`
	// Cluster says that url leads to a Redis Cluster, also with only one address. Clients see one
	// Redis with one database. Default false; several addresses in url mean true.
	Cluster bool `yaml:"cluster"`
	// SplitMSET makes Sonic split an MSET whose keys are in several slots of a Redis Cluster. Such
	// an MSET is not atomic: clients may see a part of it, and after an error a part of it may have
	// taken effect. Default false, such an MSET is refused with CROSSSLOT.
	SplitMSET bool `yaml:"split_mset"`
	// Sentinel says which Sentinels know the address of the primary. Default: none, url says where
	// Redis is.
	Sentinel SentinelConfig `yaml:"sentinel"`
	// Username and Password, or the file that holds the password, are what Sonic logs in to Redis
	// with. The commands of all clients run as this Redis user, whichever Sonic user they log in
	// as. Default: none, the user "default" of Redis without a password.
	Username     string        `yaml:"username"`
	Password     secret.String `yaml:"password"`
	PasswordFile string        `yaml:"password_file"`
	// ConnectTimeout bounds one attempt to connect. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// Wait is how long commands that Sonic has not sent to Redis yet wait while Redis cannot be
	// reached. Then Sonic answers them with an error. Default 5s.
	Wait time.Duration `yaml:"wait"`
	// TLS is used with rediss:// in url.
	TLS RedisTLSConfig `yaml:"tls"`
}

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
	// Policy is lww, none or counter.
	Policy string `yaml:"policy"`
}

// OutboxConfig bounds the stream in Redis in which effects wait until Pulsar has stored them. A
// write and its effect are one atomic step.
type OutboxConfig struct {
	// Bytes is how much memory the outbox may use in Redis. Sonic measures it twice a second. Redis
	// itself refuses writes at Bytes plus a quarter, or plus 16MiB where that is more. Default
	// 256MiB.
	Bytes config.Bytes `yaml:"bytes"`
	// Age is how old the oldest effect may be. 0: no limit. Default 0.
	Age time.Duration `yaml:"age"`
	// Full says what happens to writes while a bound is exceeded. block: they wait. fail: they get
	// an error. drop: Redis executes them, and their effects are dropped; Sonic notes the keys
	// that they change, and replicates the state of these keys once the outbox has room again.
	// Default block.
	Full string `yaml:"full"`
}

// DefaultConfig returns the defaults. They suffice where Redis and Pulsar run on this machine.
func DefaultConfig() Config {
	return Config{
		Common:       app.DefaultCommon("127.0.0.1:9303"),
		Listen:       "127.0.0.1:6380",
		TLS:          TLSConfig{MinVersion: version12},
		Limits:       defaultLimits(),
		Redis:        defaultRedis(),
		Pulsar:       messaging.DefaultConfig(),
		Zone:         "default",
		Topic:        "persistent://public/default/sonic",
		Ack:          ackLocal,
		Publish:      publishRelay,
		Flush:        flushRefuse,
		Outbox:       OutboxConfig{Bytes: 256 * config.MiB, Full: fullBlock},
		MaxClockSkew: 500 * time.Millisecond,
		Setup:        SetupConfig{Policies: setup.Defaults()},
	}
}

func defaultRedis() RedisConfig {
	return RedisConfig{URL: defaultURL, ConnectTimeout: 5 * time.Second, Wait: 5 * time.Second}
}

// Validate returns every fault that is not one of a section.
func (c Config) Validate() error {
	errs := []error{
		config.CheckListen("listen", c.Listen),
		config.CheckApart("listen", c.Listen, "admin.listen", c.Admin.Listen),
		config.CheckOneOf("ack", c.Ack, ackLocal, ackPublished),
		config.CheckOneOf("publish", c.Publish, publishRelay, publishReplicate),
		config.CheckOneOf("flush", c.Flush, flushRefuse, flushZone, flushReplicate),
		checkUsers(c.Users),
		c.checkCluster(),
		c.Setup.RefuseEviction("setup"),
	}
	fault := func(path, format string, args ...any) { errs = append(errs, config.Fault(path, format, args...)) }
	if !validZone(c.Zone) {
		fault("zone", "must be %s, got %q", zoneRule, c.Zone)
	}
	first := map[string]int{}
	for i, zone := range c.Zones {
		path := fmt.Sprintf("zones[%d]", i)
		if j, taken := first[zone]; taken {
			fault(path, "must be unique, %q is zones[%d] too", zone, j)
		} else if first[zone] = i; !validZone(zone) {
			fault(path, "must be %s, got %q", zoneRule, zone)
		}
	}
	if len(c.Zones) > 0 && !slices.Contains(c.Zones, c.Zone) {
		fault("zones", "must hold this zone, %q, too", c.Zone)
	}
	if !messaging.ValidTopic(c.Topic) || strings.HasPrefix(c.Topic, "non-persistent://") {
		fault("topic", "must be a name or persistent://tenant/namespace/name, got %q", c.Topic)
	}
	prefixes := map[string]int{}
	for i, conflict := range c.Conflicts {
		if j, taken := prefixes[conflict.Prefix]; taken {
			fault(fmt.Sprintf("conflicts[%d].prefix", i), "must be unique, %q is that of conflicts[%d] too", conflict.Prefix, j)
			continue
		}
		prefixes[conflict.Prefix] = i
	}
	peers := map[string]int{}
	for i, peer := range c.Peers {
		path := fmt.Sprintf("peers[%d].zone", i)
		if j, taken := peers[peer.Zone]; taken {
			fault(path, "must be unique, %q is peers[%d] too", peer.Zone, j)
		} else if peers[peer.Zone] = i; peer.Zone == c.Zone || !slices.Contains(c.Zones, peer.Zone) {
			fault(path, "must be another one of zones, got %q", peer.Zone)
		}
	}
	if c.Ack == ackPublished && c.Outbox.Full == fullDrop {
		fault("outbox.full", "must not be drop with ack published: a write that is not replicated cannot be answered")
	}
	if c.MaxClockSkew <= 0 {
		fault("max_clock_skew", "must be > 0, got %s", c.MaxClockSkew)
	}
	return errors.Join(errs...)
}

// zoneRule describes a valid zone name. The name is part of the names of topics and of stored
// versions.
const zoneRule = "letters, digits, '-' and '_', at most 32 of them"

func validZone(name string) bool {
	return regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`).MatchString(name)
}

// Validate returns every fault of the section.
func (c RedisConfig) Validate() error {
	var errs []error
	fault := func(path, format string, args ...any) { errs = append(errs, config.Fault(path, format, args...)) }
	u, addresses, err := splitURL(c.url())
	noHost := len(addresses) == 1 && addresses[0] == ""
	switch {
	case c.Sentinel.isSet() && c.isCluster():
		fault("sentinel", "must not be set with a Redis Cluster, whose nodes say where its primaries are")
	case err == nil && c.Sentinel.isSet() && !noHost:
		fault("url", "must name no host with sentinel, which says where Redis is: redis:// or rediss://")
	case err != nil || noHost && !c.Sentinel.isSet() || u.Scheme != "redis" && u.Scheme != "rediss" || u.RawQuery != "" || u.Fragment != "":
		fault("url", "must be redis://host:port or rediss://host:port, of a Redis Cluster redis://host:port,host:port, with a user in front of the first host only")
	case u.Path != "" && u.Path != "/" && u.Path != "/0":
		fault("url", "must name no database: clients choose theirs by SELECT")
	case u.User != nil && (c.Username != "" || c.Password != "" || c.PasswordFile != ""):
		fault("url", "must hold no user with username, password or password_file")
	}
	if !noHost {
		errs = append(errs, checkAddresses(addresses))
	}
	if c.SplitMSET && !c.isCluster() {
		fault("split_mset", "is of no use without a Redis Cluster: set cluster, or give several addresses in url")
	}
	if _, err := secret.Resolve(c.Password, c.PasswordFile); err != nil {
		fault("password_file", "%s", err)
	}
	if c.TLS != (RedisTLSConfig{}) && !strings.HasPrefix(c.URL, "rediss:") && !c.Sentinel.TLS {
		fault("tls", "is of no use without rediss:// in url")
	}
	if c.ConnectTimeout <= 0 {
		fault("connect_timeout", "must be > 0, got %s", c.ConnectTimeout)
	}
	if c.Wait <= 0 {
		fault("wait", "must be > 0, got %s", c.Wait)
	}
	return errors.Join(errs...)
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// statePrefix begins the names of Sonic's own keys.
const statePrefix = "{sonic:"

// Validate returns every fault of the entry.
func (c Conflict) Validate() error {
	err := config.CheckOneOf("policy", c.Policy, policyLWW, policyNone, policyCounter)
	if strings.HasPrefix(c.Prefix, statePrefix) {
		err = errors.Join(err, config.Fault("prefix", "must not begin with %s, which begins the names of Sonic's own keys, got %q", statePrefix, c.Prefix))
	}
	return err
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
	errs := []error{
		config.CheckOneOf("full", c.Full, fullBlock, fullFail, fullDrop),
		config.CheckAtLeast("bytes", c.Bytes, config.MiB),
	}
	if c.Age < 0 {
		errs = append(errs, config.Fault("age", "must be >= 0, got %s", c.Age))
	}
	return errors.Join(errs...)
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

// onlyShard is the only shard that this version uses: all effects are in it.
const onlyShard = 0

// topicOf returns the topic that stores a zone's effects.
func (c Config) topicOf(zone string) string { return fmt.Sprintf("%s-%s-%d", c.Topic, zone, onlyShard) }
