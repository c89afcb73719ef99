package sonic

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/apply"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/internal/sonic/zones"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Command is what the process does instead of running as a service.
type Command struct {
	// Check compares the Redis of the peers with this zone's Redis. Repair also repairs the keys
	// that differ.
	Check, Repair bool
	// From is the zone whose state Repair takes; empty: the zone with the newer state of a key.
	From string
	// Bootstrap is the zone from which the process fills this zone's empty Redis; nil: it fills
	// nothing.
	Bootstrap *string
}

func (c Command) isSet() bool { return c.Check || c.Repair || c.Bootstrap != nil || c.From != "" }

// validate returns what is wrong with the command line. A mistake in a command must not start the
// service instead.
func (c Command) validate(cfg Config) error {
	named := func(zone string) bool {
		return slices.ContainsFunc(cfg.Peers, func(p Peer) bool { return p.Zone == zone })
	}
	switch {
	case (c.Check || c.Repair) && c.Bootstrap != nil:
		return errors.New("-bootstrap cannot be combined with -check or -repair")
	case c.From != "" && !c.Repair:
		return errors.New("-repair.from needs -repair")
	case c.Bootstrap != nil && *c.Bootstrap == "":
		return errors.New("-bootstrap needs the name of a zone")
	case len(cfg.Peers) == 0:
		return errors.New("peers: name the Redis of at least one other zone")
	case c.Bootstrap != nil && !named(*c.Bootstrap):
		return fmt.Errorf("-bootstrap: peers does not name the Redis of zone %s", *c.Bootstrap)
	case c.From != "" && c.From != cfg.Zone && !named(c.From):
		return fmt.Errorf("-repair.from: zone %s is not this zone and not in peers", c.From)
	default:
		return nil
	}
}

// Flags registers the command line's own flags.
func Flags(fs *flag.FlagSet, cfg *Config) {
	// A command often runs on a machine with a service, whose admin server has the default port.
	beside := func() { cfg.Admin.Listen, cfg.Log.Level = "127.0.0.1:0", "warn" }
	command := func(set *bool) func(string) error {
		return func(text string) (err error) {
			if *set, err = strconv.ParseBool(text); *set {
				beside()
			}
			return err
		}
	}
	fs.BoolFunc("check", "compare the Redis of the peers with this zone's and exit; the status is 1 when keys differ", command(&cfg.Command.Check))
	fs.BoolFunc("repair", "as -check, and also ship the newer state of each key that differs to all zones", command(&cfg.Command.Repair))
	fs.StringVar(&cfg.Command.From, "repair.from", cfg.Command.From, "-repair takes the state of this `zone`, without regard to versions")
	fs.Func("bootstrap", "copy the Redis of `zone` into this zone's empty Redis while other zones write, and exit; start the service afterwards", func(zone string) error {
		cfg.Command.Bootstrap = &zone
		beside()
		return nil
	})
}

// buildCommand wires a command. Only -bootstrap needs Pulsar.
func buildCommand(ctx context.Context, rt *app.Runtime, cfg Config) error {
	if err := cfg.Command.validate(cfg); err != nil {
		return err
	}
	local, db, err := open(ctx, rt, cfg.Zone, cfg.Redis)
	if err != nil {
		return err
	}
	var others []*zones.Zone
	for _, peer := range cfg.Peers {
		z, _, err := open(ctx, rt, peer.Zone, peer.Redis)
		if err != nil {
			return err
		}
		others = append(others, z)
	}
	var client *messaging.Client
	if cfg.Command.Bootstrap != nil {
		if client, err = dialPulsar(ctx, rt, cfg); err != nil {
			return err
		}
	}
	rt.Go("command", func(ctx context.Context) error {
		var err error
		switch {
		case cfg.Command.Bootstrap == nil:
			err = compare(ctx, cfg, local, others, os.Stdout)
		case db != nil:
			err = checkRedis(ctx, db) // no Sonic has checked this Redis yet; openCluster has, that of a cluster
		}
		if err == nil && cfg.Command.Bootstrap != nil {
			err = bootstrap(ctx, cfg, client, local, others, os.Stdout)
		}
		if err != nil {
			return err
		}
		rt.Shutdown()
		<-ctx.Done()
		return nil
	})
	return nil
}

// replyTimeout bounds one reply of a Redis to a command. Redis reads or writes a key in one step,
// which takes long for a key with millions of elements.
const replyTimeout = 5 * time.Minute

// open makes the client of a zone's Redis, or those of its Redis Cluster: db is nil then. It waits
// until the slots of the cluster are known.
func open(ctx context.Context, rt *app.Runtime, zone string, cfg RedisConfig) (z *zones.Zone, db *redis.Client, err error) {
	b, err := cfg.backend(rt.Log)
	if err != nil {
		return nil, nil, err
	}
	if len(b.nodes) > 0 {
		z, err = openCluster(ctx, rt, zone, b)
		return z, nil, err
	}
	db, _ = b.control(nil, nil)
	rt.OnStop("redis of zone "+zone, func(context.Context) error { return db.Close() })
	b.follow(rt, zone)
	return zones.New(zone, db.WithTimeout(replyTimeout)), db, nil
}

// openTimeout is how long a command waits for a Redis Cluster.
const openTimeout = 30 * time.Second

// openCluster is open for a Redis Cluster.
func openCluster(ctx context.Context, rt *app.Runtime, zone string, b backend) (*zones.Zone, error) {
	nodes := b.cluster(rt.Log)
	p := primaries.New(nodes, func(address string) *redis.Client { return b.nodeClient(address).WithTimeout(replyTimeout) })
	rt.OnStop("redis cluster of zone "+zone, func(context.Context) error { return p.Close() })
	rt.Go("redis cluster of zone "+zone, nodes.Run)
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := b.awaitCluster(ctx, nodes, health.New(rt.Log.Named("redis"))); err != nil {
		return nil, fmt.Errorf("the Redis Cluster of zone %s: %w", zone, errors.Join(err, nodes.Err()))
	}
	return zones.NewCluster(zone, p), nil
}

// bootstrap fills this zone's Redis.
func bootstrap(ctx context.Context, cfg Config, client *messaging.Client, local *zones.Zone, others []*zones.Zone, w io.Writer) error {
	i := slices.IndexFunc(others, func(z *zones.Zone) bool { return z.Name() == *cfg.Command.Bootstrap })
	subscribe := func(ctx context.Context) (zones.Subscribed, error) { return subscribe(ctx, cfg, client) }
	copying := zones.Bootstrap{Source: others[i], Target: local, Subscribe: subscribe, Progress: func(p zones.Progress) { _, _ = fmt.Fprintln(w, p) }}
	if err := copying.Run(ctx); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w, "zone %s is filled: start its Sonic\n", cfg.Zone)
	return nil
}

// subscribeTimeout bounds making one subscription, and reading the end of its topic.
const subscribeTimeout = 30 * time.Second

// subscribe creates the subscriptions that this zone needs: Pulsar then keeps all later effects of
// other zones until this zone's Sonic applies them. Earlier effects may not be kept. So it returns
// the ends of the topics. That includes this zone's own topic, for a zone whose Redis was emptied.
func subscribe(ctx context.Context, cfg Config, client *messaging.Client) (zones.Subscribed, error) {
	s := zones.Subscribed{Least: zones.Reached{}, Markers: map[string]primaries.Marker{}}
	for _, zone := range cfg.zones() {
		if err := subscribeOne(ctx, cfg, client, zone, s); err != nil {
			return s, err
		}
	}
	return s, nil
}

// subscribeOne is subscribe for one zone. It adds to s.
func subscribeOne(ctx context.Context, cfg Config, client *messaging.Client, zone string, s zones.Subscribed) error {
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	if zone != cfg.Zone {
		if err := apply.Subscribe(ctx, client, cfg.applier(zone, "")); err != nil {
			return err
		}
	}
	for {
		last, err := client.Last(ctx, cfg.topicOf(zone))
		if zone == cfg.Zone && errors.Is(err, context.DeadlineExceeded) {
			return nil // the topic had a last message, but does not keep it any more
		}
		if err != nil {
			return fmt.Errorf("cannot read the end of the topic of zone %s: %w", zone, err)
		}
		h, err := topic.Last(ctx, client, last, zone, func(*messaging.Delivery, error) {})
		switch {
		case err != nil || h == nil:
			return err
		case cfg.Redis.isCluster() && zone == cfg.Zone && !h.Slots:
			return fmt.Errorf("the topic of zone %s has messages of one Redis: give the zone with the Redis Cluster another name", zone)
		case cfg.Redis.isCluster() && h.Part < h.Parts: // there is no marker within a message
			if !backoff.Sleep(ctx, partPause) {
				return fmt.Errorf("the last message of zone %s is not stored completely: check that its Sonic runs: %w", zone, ctx.Err())
			}
			continue
		case h.Slots:
			s.Least[zone] = wire.ID{Ms: h.Last.Ms + 1} // progress is a time, see [zones.Reached]
			s.Markers[zone] = primaries.Marker{Message: last.ID, Watermark: h.Watermark}
		case h.Part < h.Parts:
			s.Least[zone] = h.Prev // the remaining parts are not stored
		default:
			s.Least[zone] = h.Last
			s.Markers[zone] = primaries.Marker{Message: last.ID, Watermark: h.Last.Ms}
		}
		return nil
	}
}

// partPause is the pause before subscribe looks again for the rest of a message.
const partPause = 50 * time.Millisecond

// compare compares this zone with the others, one by one, and with -repair repairs the keys that
// differ. It returns an error if keys still differ at the end.
func compare(ctx context.Context, cfg Config, local *zones.Zone, others []*zones.Zone, w io.Writer) error {
	// The zone of -repair.from comes first. Then this zone has its state, and the other zones get
	// it from this zone.
	command := cfg.Command
	others = slices.Clone(others)
	if i := slices.IndexFunc(others, func(z *zones.Zone) bool { return z.Name() == command.From }); i > 0 {
		others[0], others[i] = others[i], others[0]
	}
	if command.Repair {
		accepted, err := local.AcceptHistory(ctx)
		if err != nil {
			return err
		}
		if accepted {
			_, _ = fmt.Fprintf(w, "zone %s continues with the history of this Redis\n", cfg.Zone)
		}
	}
	left := 0
	for _, peer := range others {
		if command.From != "" && command.From != peer.Name() {
			command.From = local.Name()
		}
		check := zones.Check{
			Local: local, Peer: peer, Zones: cfg.zones(),
			Progress: func(p zones.Progress) { _, _ = fmt.Fprintln(w, p) },
		}
		n, err := compareOne(ctx, command, check, w)
		if err != nil {
			return err
		}
		left += n
	}
	if left > 0 {
		return fmt.Errorf("%d keys differ", left)
	}
	return nil
}

// compareOne returns how many keys differ at the end.
func compareOne(ctx context.Context, command Command, check zones.Check, w io.Writer) (left int, err error) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	var found []zones.Difference
	done, differ := "", "keys differ"
	if command.Repair {
		repair := zones.Repair{Check: check, From: command.From, Note: func(d zones.Difference, from string) {
			say("%s: shipping that of zone %s", d, from)
		}}
		var repaired int
		repaired, found, err = repair.Run(ctx)
		done, differ = fmt.Sprintf("%d keys repaired, ", repaired), "differ"
	} else {
		found, err = check.Run(ctx)
	}
	if err != nil {
		return 0, err
	}
	for _, d := range found {
		say("%s", d)
		if !d.Changing {
			left++
		}
	}
	say("zones %s and %s: %s%d %s, %d changed each time", check.Local.Name(), check.Peer.Name(), done, left, differ, len(found)-left)
	return left, nil
}
