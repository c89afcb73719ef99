package nightingale

import (
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/nightingale/relabel"
	"github.com/aviaryhq/aviary/internal/nightingale/tenant"
)

// settings are the settings that a SIGHUP can change. They change together. A request loads them
// more than once: to authenticate the sender, for quotas and rules, and to charge the tenant. So
// these steps of a request may have different settings.
type settings struct {
	quotas  *tenant.Quotas
	rules   *relabel.Rules // nil for none
	senders *tenant.Senders
}

// apply puts the settings of a configuration into effect. If it returns an error, nothing has
// changed.
func (v *receiver) apply(cfg Config) error {
	senders, err := tenant.NewSenders(v.log, cfg.HTTP.AccessConfig)
	if err != nil {
		return err
	}
	v.budget.SetShare(cfg.Tenants.InFlightShare)
	v.settings.Store(&settings{
		quotas: tenant.NewQuotas(cfg.Tenants), senders: senders,
		rules: relabel.New(cfg.RelabelConfigs, cfg.KeyLabels, v.format.SamplesOnly),
	})
	return nil
}

// reload applies a configuration while the service runs. It refuses a configuration that changes a
// key that is not one of settings as a whole. So the configuration that the admin
// server shows is always in effect.
func (v *receiver) reload(before, after Config) error {
	kept := after
	kept.Tenants, kept.RelabelConfigs = before.Tenants, before.RelabelConfigs
	kept.HTTP.AccessConfig = before.HTTP.AccessConfig
	kept.HTTP.WebConfigFile = after.HTTP.WebConfigFile
	kept.Setup = before.Setup // only -setup uses it
	if keys := config.Changed(before, kept); len(keys) > 0 {
		return fmt.Errorf("a restart is needed to change %s: without one only tenants, relabel_configs, "+
			"http.bearer_tokens, http.bearer_token_file and http.senders change", strings.Join(keys, ", "))
	}
	return v.apply(after)
}
