package ingest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/webhooksig"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/bearer"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// TenantConfig is a sender, or several senders with the same rights. It has one or more of API
// keys, signing secrets and JWT. Each of them is enough.
type TenantConfig struct {
	// Name is 1 to 63 of a-z, 0-9 and -, and neither begins nor ends with -. The tenant's events
	// have it as the property tenant.
	Name string `yaml:"name"`
	// Buses are the buses that the tenant may write to; a * at the end stands for any rest, and "*"
	// for all. Required.
	Buses []string `yaml:"buses"`
	// APIKeys are sent as Authorization: Bearer KEY or X-Api-Key: KEY. APIKeyFile names a file with
	// further keys, one on each line; the file is read again every ten seconds. A key may belong to
	// one tenant only. Default: none.
	APIKeys    []secret.String `yaml:"api_keys"`
	APIKeyFile string          `yaml:"api_key_file"`
	// SigningSecrets are for requests that are signed by Standard Webhooks. Each is whsec_ and 24 to
	// 64 bytes in base64. All of them are valid, at most four, so that they can be rotated. A secret
	// may belong to one tenant only. Default: none.
	SigningSecrets []secret.String `yaml:"signing_secrets"`
	// JWT is for bearer tokens that an identity provider has signed. Default: none.
	JWT *JWTConfig `yaml:"jwt"`
	// Quota bounds what the tenant may store. Default: no bound.
	Quota Quota `yaml:"quota"`
}

// Validate returns every fault of one tenant.
func (c TenantConfig) Validate() error {
	var errs []error
	if !isName(c.Name) {
		errs = append(errs, config.Fault("name", "must be 1 to 63 of a-z, 0-9 and -, the first and last no -, got %q", truncate.Text(c.Name, 64)))
	}
	if len(c.Buses) == 0 {
		errs = append(errs, config.Fault("buses", `must have a bus at least; "*" stands for all`))
	}
	for i, bus := range c.Buses {
		if name, _ := strings.CutSuffix(bus, "*"); !isName(bus) && (name == bus || strings.Trim(name, nameBytes) != "") {
			errs = append(errs, config.Fault(fmt.Sprintf("buses[%d]", i), "must be a bus' name, or the beginning of names and *, got %q", truncate.Text(bus, 64)))
		}
	}
	if len(c.APIKeys)+len(c.SigningSecrets) == 0 && c.APIKeyFile == "" && c.JWT == nil {
		errs = append(errs, errors.New("must have api_keys, api_key_file, signing_secrets or jwt"))
	}
	for i, key := range c.APIKeys {
		if strings.TrimSpace(key.Reveal()) == "" {
			errs = append(errs, config.Fault(fmt.Sprintf("api_keys[%d]", i), "must not be empty"))
		}
	}
	for i, key := range c.SigningSecrets {
		if signer, err := webhooksig.New(key); err != nil {
			errs = append(errs, config.Fault(fmt.Sprintf("signing_secrets[%d]", i), "%s", err))
		} else if signer == nil {
			errs = append(errs, config.Fault(fmt.Sprintf("signing_secrets[%d]", i), "must not be empty"))
		}
	}
	if _, err := webhooksig.New(joined(c.SigningSecrets)); err != nil && len(errs) == 0 {
		errs = append(errs, config.Fault("signing_secrets", "%s", err))
	}
	return errors.Join(errs...)
}

const nameBytes = "abcdefghijklmnopqrstuvwxyz0123456789-"

// isName checks the name of a bus or tenant.
func isName(name string) bool {
	return len(name) > 0 && len(name) <= 63 && strings.Trim(name, nameBytes) == "" && name[0] != '-' && name[len(name)-1] != '-' &&
		strings.IndexFunc(name, func(r rune) bool { return !strings.ContainsRune(nameBytes, r) }) < 0
}

// checkTenants returns what is wrong between tenants.
func (c Config) checkTenants() error {
	var errs []error
	names := map[string]int{}
	subjects := map[[3]string]int{}
	secrets := map[secret.String][2]int{}
	for i, t := range c.Tenants {
		if first, known := names[t.Name]; known {
			errs = append(errs, config.Fault(fmt.Sprintf("tenants[%d].name", i), "is that of tenants[%d], too", first))
		} else {
			names[t.Name] = i
		}
		for j, text := range t.SigningSecrets {
			if first, known := secrets[text]; !known {
				secrets[text] = [2]int{i, j}
			} else if first[0] != i {
				errs = append(errs, config.Fault(fmt.Sprintf("tenants[%d].signing_secrets[%d]", i, j),
					"is also tenants[%d].signing_secrets[%d]: each tenant could sign for the other", first[0], first[1]))
			}
		}
		if t.JWT == nil {
			continue
		}
		id := [3]string{t.JWT.Issuer, t.JWT.Audience, t.JWT.Subject}
		if first, known := subjects[id]; known {
			errs = append(errs, config.Fault(fmt.Sprintf("tenants[%d].jwt", i), "has the issuer, audience and subject of tenants[%d]: a token would match both", first))
		} else {
			subjects[id] = i
		}
	}
	return errors.Join(append(errs, bearer.Check(c.tokenSources("")))...)
}

// CheckFiles returns what is wrong with the files that the section names. prefix is the prefix of
// its keys, such as "ingest.".
func (c Config) CheckFiles(prefix string) error {
	if len(config.Validate(c)) > 0 { // the section itself reports its other faults
		c.Tenants = slices.Clone(c.Tenants)
		for i := range c.Tenants {
			t := &c.Tenants[i]
			if t.APIKeys = nil; t.JWT != nil && t.JWT.KeyFile == "" {
				t.JWT = nil
			}
		}
	}
	_, err := newSenders(zap.NewNop(), c, prefix)
	return err
}

// tokenSources returns the keys of the configuration that have API keys.
func (c Config) tokenSources(prefix string) []bearer.Source {
	all := make([]bearer.Source, len(c.Tenants))
	for i, t := range c.Tenants {
		key := fmt.Sprintf("%stenants[%d].", prefix, i)
		all[i] = bearer.Source{Tenant: t.Name, Tokens: bearer.List(t.APIKeys, key+"api_keys"), File: t.APIKeyFile, FileKey: key + "api_key_file"}
	}
	return all
}

// joined returns keys as webhooksig.New takes them.
func joined(keys []secret.String) secret.String {
	var all []string
	for _, key := range keys {
		all = append(all, key.Reveal())
	}
	return secret.String(strings.Join(all, " "))
}

// tenant is a known sender.
type tenant struct {
	name          string
	buses         []string
	signer        *webhooksig.Signer // nil: the tenant does not sign
	events, bytes *admission.Bucket  // nil for no bound
	properties    map[string]string
}

func newTenant(c TenantConfig, now time.Time) *tenant {
	signer, _ := webhooksig.New(joined(c.SigningSecrets)) // Validate has checked them
	return &tenant{
		name: c.Name, buses: c.Buses, signer: signer, properties: map[string]string{model.PropertyTenant: c.Name},
		events: bucketOf(c.Quota.EventsPerSecond, int64(c.Quota.EventsBurst), now),
		bytes:  bucketOf(float64(c.Quota.BytesPerSecond), int64(c.Quota.BytesBurst), now),
	}
}

// mayWrite reports whether the tenant may write to a bus.
func (t *tenant) mayWrite(bus string) bool {
	for _, pattern := range t.buses {
		if prefix, all := strings.CutSuffix(pattern, "*"); pattern == bus || all && strings.HasPrefix(bus, prefix) {
			return true
		}
	}
	return false
}

// inherit makes the tenant use its former buckets, changed to its new bounds: requests in flight
// give back to them what is not stored.
func (t *tenant) inherit(former *tenant, quota Quota) {
	now := time.Now()
	if t.events != nil && former.events != nil {
		t.events = former.events
		t.events.Change(now, quota.EventsPerSecond, burstOf(quota.EventsPerSecond, int64(quota.EventsBurst)))
	}
	if t.bytes != nil && former.bytes != nil {
		t.bytes = former.bytes
		t.bytes.Change(now, float64(quota.BytesPerSecond), burstOf(float64(quota.BytesPerSecond), int64(quota.BytesBurst)))
	}
}

// take charges events and their bytes, or refuses all of them.
func (t *tenant) take(events, bytes int) error {
	if t == nil {
		return nil
	}
	now := time.Now()
	if t.events != nil {
		if wait := t.events.Take(now, events); wait > 0 {
			return overQuota(wait, "the tenant's quota of %g events per second is used up", t.events.Rate())
		}
	}
	if t.bytes != nil {
		if wait := t.bytes.Take(now, bytes); wait > 0 {
			if t.events != nil {
				t.events.Return(now, events)
			}
			return overQuota(wait, "the tenant's quota of %g bytes per second is used up", t.bytes.Rate())
		}
	}
	return nil
}

// refund gives back the charge for events that were not stored.
func (t *tenant) refund(events, bytes int) {
	if t == nil || events == 0 {
		return
	}
	now := time.Now()
	if t.events != nil {
		t.events.Return(now, events)
	}
	if t.bytes != nil {
		t.bytes.Return(now, bytes)
	}
}

func overQuota(wait time.Duration, format string, rate float64) error {
	return &refusal.Error{Status: http.StatusTooManyRequests, Reason: "tenant_quota", RetryAfter: max(wait, time.Second), Text: fmt.Sprintf(format, rate)}
}
