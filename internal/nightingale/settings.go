package nightingale

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/door"
)

// settings are what a SIGHUP takes over. A request has those of its beginning.
type settings struct {
	quotas  *quotas
	rules   *rules // nil for none
	senders *senders
}

// take puts the settings of a configuration in force. A fault changes nothing.
func (v *receiver) take(cfg Config) error {
	if err := cfg.HTTP.check(); err != nil {
		return err
	}
	who, err := newSenders(v.log, cfg.HTTP)
	if err != nil {
		return err
	}
	fresh := &settings{quotas: newQuotas(cfg.Tenants), rules: newRules(cfg), senders: who}
	if old := v.settings.Load(); old != nil {
		fresh.quotas.inherit(old.quotas)
	}
	v.budget.SetShare(cfg.Tenants.InFlightShare)
	v.settings.Store(fresh)
	return nil
}

// change takes over what can be changed while the service runs: tenants, filter,
// relabel_configs, and who may write. A configuration that changes more is refused
// whole, so that what the admin server shows is in force.
func (v *receiver) change(before, after Config) error {
	kept := after
	kept.Tenants, kept.Filter, kept.RelabelConfigs = before.Tenants, before.Filter, before.RelabelConfigs
	kept.HTTP.BearerTokens, kept.HTTP.BearerTokenFile, kept.HTTP.Senders = before.HTTP.BearerTokens, before.HTTP.BearerTokenFile, before.HTTP.Senders
	var keys []string
	was, is := reflect.ValueOf(before), reflect.ValueOf(kept)
	for i := range was.NumField() {
		key, _, _ := strings.Cut(was.Type().Field(i).Tag.Get("yaml"), ",")
		if key != "" && key != "-" && !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			keys = append(keys, key)
		}
	}
	if len(keys) > 0 {
		return fmt.Errorf("a restart is needed to change %s: without one only tenants, filter, relabel_configs, "+
			"http.bearer_tokens, http.bearer_token_file and http.senders change", strings.Join(keys, ", "))
	}
	return v.take(after)
}

// inherit gives tenants no more than their former quotas left them.
func (q *quotas) inherit(old *quotas) {
	now := time.Now()
	give := func(fresh, former *door.Bucket) {
		if fresh != nil && former != nil {
			fresh.AtMost(former.Available(now))
		}
	}
	give(q.rest, old.rest)
	for name, b := range old.overrides {
		give(q.bucket(name, now), b)
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	for name, b := range old.tracked {
		if fresh := q.bucket(name, now); fresh != q.rest {
			give(fresh, b)
		}
	}
}
