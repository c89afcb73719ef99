package nightingale

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/relabel"
)

// settings are the settings that a SIGHUP can change. They change together. A request loads them
// more than once: to authenticate the sender, for quotas and rules, and to charge the tenant. So
// these steps of a request may have different settings.
type settings struct {
	quotas  *quotas
	rules   *relabel.Rules // nil for none
	senders *senders
}

// take puts the settings of a configuration into effect. If it returns an error, nothing has
// changed.
func (v *receiver) take(cfg Config) error {
	if err := cfg.HTTP.check(); err != nil {
		return err
	}
	who, err := newSenders(v.log, cfg.HTTP)
	if err != nil {
		return err
	}
	fresh := &settings{quotas: newQuotas(cfg.Tenants), rules: relabel.New(cfg.RelabelConfigs, cfg.KeyLabels, format.Find(cfg.Format).SamplesOnly), senders: who}
	v.budget.SetShare(cfg.Tenants.InFlightShare)
	v.settings.Store(fresh)
	return nil
}

// change applies the settings that can change while the service runs: tenants,
// relabel_configs, bearer tokens and senders. It refuses a configuration that changes any other
// key, and applies none of it. So the configuration that the admin server shows is always in
// effect.
func (v *receiver) change(before, after Config) error {
	kept := after
	kept.Tenants, kept.RelabelConfigs = before.Tenants, before.RelabelConfigs
	kept.Setup = before.Setup // only -setup uses it
	kept.HTTP.BearerTokens, kept.HTTP.BearerTokenFile, kept.HTTP.Senders = before.HTTP.BearerTokens, before.HTTP.BearerTokenFile, before.HTTP.Senders
	var keys []string
	was, is := reflect.ValueOf(before), reflect.ValueOf(kept)
	for i := range was.NumField() {
		key, _, _ := strings.Cut(was.Type().Field(i).Tag.Get("yaml"), ",")
		if key != "" && key != "-" && !config.SameValue(was.Field(i).Interface(), is.Field(i).Interface()) {
			keys = append(keys, key)
		}
	}
	if len(keys) > 0 {
		return fmt.Errorf("a restart is needed to change %s: without one only tenants, relabel_configs, "+
			"http.bearer_tokens, http.bearer_token_file and http.senders change", strings.Join(keys, ", "))
	}
	return v.take(after)
}
