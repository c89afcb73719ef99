package sonic

import (
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/apply"
	"github.com/aviaryhq/aviary/internal/sonic/outbox"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// policies are what the library needs to know of conflicts.
func (c Config) policies() []script.Policy {
	var policies []script.Policy
	for _, conflict := range c.Conflicts {
		policies = append(policies, script.Policy{Prefix: conflict.Prefix, Policy: conflict.Policy})
	}
	return policies
}

func (c Config) proxy(b backend) proxy.Config {
	p := proxy.Config{Backend: c.Redis.endpoint(b), Zones: c.zones()}
	if c.Ack == ackPublished {
		p.Ack = proxy.AckPublished
	}
	return p
}

// beatEvery is how often the other zones hear of this one.
const beatEvery = time.Second

func (c Config) shipper() outbox.Config {
	s := outbox.Config{Zone: c.Zone, Lane: lane, Topic: c.topicOf(c.Zone)}
	if len(c.zones()) > 1 {
		s.Beat = beatEvery
	}
	return s
}

func (c Config) applier(origin string) apply.Config {
	return apply.Config{Zone: c.Zone, Origin: origin, Topic: c.topicOf(origin), MaxClockSkew: c.MaxClockSkew}
}
