package sonic

import (
	"context"
	"errors"

	"github.com/aviaryhq/aviary/internal/config"
)

// change applies a new configuration while the process runs: users and outbox. If
// any other key differs from the configuration in use, it returns an error and applies nothing. It
// must not be called concurrently. In front of a Redis Cluster outbox.bytes takes effect at the next
// start.
func (s *service) change(_ context.Context, cfg Config) error {
	if err := onlyAtStart(s.current, cfg); err != nil {
		return err
	}
	users, err := cfg.users()
	if err != nil {
		return err
	}
	s.proxy.SetUsers(users)
	if s.monitor != nil {
		s.monitor.change(cfg.Outbox)
	}
	s.current = cfg
	return nil
}

// onlyAtStart returns a fault for each key that differs and takes effect only at a start. It
// ignores the common part, which package app handles, peers and setup, which only the commands use.
func onlyAtStart(was, is Config) error {
	var errs []error
	if is.Redis.isCluster() && !is.isAlone() && was.Outbox.Bytes != is.Outbox.Bytes {
		errs = append(errs, config.Fault("outbox.bytes", "takes effect at the next start, in front of a Redis Cluster"))
	}
	for _, c := range []*Config{&was, &is} {
		c.Users, c.Outbox, c.Peers, c.Setup, c.Command = nil, OutboxConfig{}, nil, SetupConfig{}, Command{}
		c.Common = DefaultConfig().Common
	}
	for _, key := range config.Changed(was, is) {
		switch key {
		case "zones", "conflicts", "topic":
			errs = append(errs, config.Fault(key, "takes effect at the next start: change it in all zones, and start their Sonics again"))
		default:
			errs = append(errs, config.Fault(key, "takes effect at the next start"))
		}
	}
	return errors.Join(errs...)
}
