package setup

import (
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Policies are what -setup sets for the service's namespaces.
type Policies struct {
	// Retention is how much of what is acknowledged the brokers keep.
	Retention Retention `yaml:"retention"`
	// BacklogQuota is how much that is not acknowledged the brokers keep.
	BacklogQuota BacklogQuota `yaml:"backlog_quota"`
}

// Retention is how much of what is acknowledged the brokers keep: what either bound allows to be
// removed is removed.
type Retention struct {
	// Time is how long acknowledged messages are kept, in whole minutes. Default 0: no bound, and
	// with bytes 0, too, the retention is not changed.
	Time time.Duration `yaml:"time"`
	// Bytes is how much is kept of each partition, in whole MiB. Default 0: no bound, and with
	// time 0, too, the retention is not changed.
	Bytes config.Bytes `yaml:"bytes"`
}

// BacklogQuota bounds what subscriptions have not acknowledged.
type BacklogQuota struct {
	// Bytes is the bound for each partition. Where retention has both bounds, it must be below
	// retention.bytes: Pulsar refuses it otherwise. Default 0: the quota is not changed.
	Bytes config.Bytes `yaml:"bytes"`
	// Policy is what brokers do at the bound: producer_request_hold, publishing waits;
	// producer_exception, it fails; consumer_backlog_eviction, the oldest messages are lost. Default
	// producer_request_hold.
	Policy messaging.BacklogPolicy `yaml:"policy"`
}

// Section is the section of a service that publishes to topics of its configuration.
type Section struct {
	Policies `yaml:",inline"`
	// Clusters are the Pulsar clusters that the namespaces are replicated between, this one too.
	// They must know each other. Default: not changed.
	Clusters []string `yaml:"clusters"`
	// Deduplication switches deduplication on in the namespaces. Default false: not changed, and
	// on where the service needs it.
	Deduplication bool `yaml:"deduplication"`
	// Partitions is how many partitions topics are created with. Default 0: without partitions.
	Partitions int `yaml:"partitions"`
}

// Defaults returns the defaults: no policy is changed.
func Defaults() Policies {
	return Policies{BacklogQuota: BacklogQuota{Policy: messaging.HoldProducers}}
}

// Validate returns every fault of the section.
func (p Policies) Validate() error {
	var errs []error
	if r := p.Retention; r.Time < 0 || r.Time%time.Minute != 0 {
		errs = append(errs, config.Fault("retention.time", "must be >= 0 and whole minutes, got %s", r.Time))
	}
	if r := p.Retention; r.Bytes%config.MiB != 0 {
		errs = append(errs, config.Fault("retention.bytes", "must be whole MiB, got %s", r.Bytes))
	}
	if q, r := p.BacklogQuota, p.Retention; r.Time > 0 && r.Bytes > 0 && q.Bytes >= r.Bytes {
		errs = append(errs, config.Fault("backlog_quota.bytes", "must be below retention.bytes, or Pulsar refuses it: got %s and %s", q.Bytes, r.Bytes))
	}
	return errors.Join(append(errs, config.CheckOneOf("backlog_quota.policy", string(p.BacklogQuota.Policy),
		string(messaging.HoldProducers), string(messaging.RefuseProducers), string(messaging.EvictBacklog)))...)
}

// Validate returns every fault of the section.
func (s Section) Validate() error {
	if s.Partitions < 0 {
		return config.Fault("partitions", "must be >= 0, got %d", s.Partitions)
	}
	return nil
}

// RefuseEviction returns a fault for a quota that loses messages. path is the section's.
func (p Policies) RefuseEviction(path string) error {
	if p.BacklogQuota.Policy == messaging.EvictBacklog {
		return config.Fault(path+".backlog_quota.policy", "must not be %s: what it removes is lost", messaging.EvictBacklog)
	}
	return nil
}

// retention returns the retention that a namespace must have; ok is false if it is not changed.
func (p Policies) retention() (r messaging.Retention, ok bool) {
	r = messaging.Retention{Time: p.Retention.Time, Size: int64(p.Retention.Bytes)}
	if r == (messaging.Retention{}) {
		return r, false
	}
	if r.Time == 0 {
		r.Time = messaging.Unlimited
	}
	if r.Size == 0 {
		r.Size = messaging.Unlimited
	}
	return r, true
}
