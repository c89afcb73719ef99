package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
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
	// APIKeys are sent as Authorization: Bearer KEY or X-Api-Key: KEY. A key may belong to one
	// tenant only. Default: none.
	APIKeys []secret.String `yaml:"api_keys"`
	// APIKeyFile names a file with further API keys, one on each line. The file is read again every
	// ten seconds. Default: none.
	APIKeyFile string `yaml:"api_key_file"`
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
	errs := []error{
		config.Require(model.ValidName(c.Name), "name", "must be 1 to 63 of a-z, 0-9 and -, without a - at the beginning or end, got %q", truncate.Text(c.Name, 64)),
		config.Require(len(c.Buses) > 0, "buses", `must have a bus at least; "*" stands for all`),
	}
	for i, bus := range c.Buses {
		prefix, open := strings.CutSuffix(bus, "*")
		errs = append(errs, config.Require(model.ValidName(bus) || open && model.ValidName("a"+prefix+"a"), fmt.Sprintf("buses[%d]", i),
			"must be a bus' name, or the beginning of names and *, got %q", truncate.Text(bus, 64)))
	}
	if len(c.APIKeys)+len(c.SigningSecrets) == 0 && c.APIKeyFile == "" && c.JWT == nil {
		errs = append(errs, errors.New("must have api_keys, api_key_file, signing_secrets or jwt"))
	}
	for i, key := range c.APIKeys {
		errs = append(errs, config.Require(strings.TrimSpace(key.Reveal()) != "", fmt.Sprintf("api_keys[%d]", i), "must not be empty"))
	}
	valid := true
	for i, key := range c.SigningSecrets {
		signer, err := webhooksig.New(key)
		valid = valid && signer != nil
		errs = append(errs, config.Require(signer != nil, fmt.Sprintf("signing_secrets[%d]", i), "%s", cmp.Or(err, errEmpty)))
	}
	if _, err := webhooksig.New(joined(c.SigningSecrets)); err != nil && valid {
		errs = append(errs, config.Fault("signing_secrets", "%s", err))
	}
	return errors.Join(errs...)
}

var errEmpty = errors.New("must not be empty")

// checkTenants returns what is wrong between tenants.
func (c Config) checkTenants() error {
	var errs []error
	first := map[string]int{} // the first tenant that has a name, a secret, or a JWT's claims
	check := func(i int, key, value, format string) {
		if other, known := first[value]; !known {
			first[value] = i
		} else if other != i {
			errs = append(errs, config.Fault(fmt.Sprintf("tenants[%d].%s", i, key), format, other))
		}
	}
	for i, t := range c.Tenants {
		check(i, "name", "name "+t.Name, "is that of tenants[%d], too")
		for j, text := range t.SigningSecrets {
			check(i, fmt.Sprintf("signing_secrets[%d]", j), "secret "+text.Reveal(), "is also a secret of tenants[%d]: each could sign for the other")
		}
		if t.JWT != nil {
			claims := fmt.Sprintf("claims %q %q %q", t.JWT.Issuer, t.JWT.Audience, t.JWT.Subject)
			check(i, "jwt", claims, "has the issuer, audience and subject of tenants[%d]: a token would match both")
		}
	}
	return errors.Join(errs...)
}

// CheckFiles returns what is wrong with API keys, in the section and in the files that it names, and
// with the files of keys for JWT.
func (c Config) CheckFiles() error {
	_, err := newSenders(zap.NewNop(), c)
	return err
}

// tokenSources returns the keys of the configuration that have API keys.
func (c Config) tokenSources() []bearer.Source {
	all := make([]bearer.Source, len(c.Tenants))
	for i, t := range c.Tenants {
		key := fmt.Sprintf("ingest.tenants[%d].", i)
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
	q := c.Quota
	return &tenant{
		name: c.Name, buses: c.Buses, signer: signer, properties: map[string]string{model.PropertyTenant: c.Name},
		events: admission.NewBucket(q.EventsPerSecond, q.EventsBurst, now),
		bytes:  admission.NewBucket(float64(q.BytesPerSecond), int(q.BytesBurst), now),
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

// take charges events and their bytes, or refuses all of them.
func (t *tenant) take(events, bytes int) error {
	if t == nil {
		return nil
	}
	now := time.Now()
	if wait := t.events.Take(now, events); wait > 0 {
		return overQuota(wait, "events", t.events)
	}
	if wait := t.bytes.Take(now, bytes); wait > 0 {
		t.events.Return(now, events)
		return overQuota(wait, "bytes", t.bytes)
	}
	return nil
}

// refund gives back the charge for events that were not stored.
func (t *tenant) refund(events, bytes int) {
	if t == nil || events == 0 {
		return
	}
	now := time.Now()
	t.events.Return(now, events)
	t.bytes.Return(now, bytes)
}

func overQuota(wait time.Duration, unit string, b *admission.Bucket) error {
	return &refusal.Error{
		Status: http.StatusTooManyRequests, Reason: "tenant_quota", RetryAfter: max(wait, time.Second),
		Text: fmt.Sprintf("the tenant's quota of %g %s per second is used up", b.Rate(), unit),
	}
}
