package nightingale

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// SenderConfig binds senders to a tenant. Their requests are that tenant's, with the header X-Scope-OrgID or without it; one that names another
// tenant is answered 403.
type SenderConfig struct {
	// Tenant is the one that they write as. Required.
	Tenant string `yaml:"tenant"`
	// BearerTokens are theirs, and so are those of BearerTokenFile, as HTTPConfig has them for senders that are not bound. A token may be bound to
	// one tenant only. Default: none.
	BearerTokens    []secret.String `yaml:"bearer_tokens"`
	BearerTokenFile string          `yaml:"bearer_token_file"`
	// BasicAuthUsers are theirs, of those in http.web_config_file. Default: none.
	BasicAuthUsers []string `yaml:"basic_auth_users"`
}

// Validate returns every fault of a binding by itself.
func (c SenderConfig) Validate() error {
	var errs []error
	if c.Tenant == "" {
		errs = append(errs, config.Fault("tenant", "must name the tenant"))
	} else if err := checkTenant(c.Tenant); err != nil {
		errs = append(errs, config.Fault("tenant", "%v", err))
	}
	if len(c.BearerTokens)+len(c.BasicAuthUsers) == 0 && c.BearerTokenFile == "" {
		errs = append(errs, errors.New("must have bearer_tokens, bearer_token_file or basic_auth_users"))
	}
	for i, token := range c.BearerTokens {
		if blank(token) {
			errs = append(errs, config.Fault(fmt.Sprintf("bearer_tokens[%d]", i), "must not be empty"))
		}
	}
	for i, user := range c.BasicAuthUsers {
		if user == "" {
			errs = append(errs, config.Fault(fmt.Sprintf("basic_auth_users[%d]", i), "must not be empty"))
		}
	}
	return errors.Join(errs...)
}

// Validate returns every fault of the server's keys.
func (c HTTPConfig) Validate() error {
	var errs []error
	if slices.ContainsFunc(c.BearerTokens, blank) {
		errs = append(errs, config.Fault("bearer_tokens", "must not be empty"))
	}
	users := map[string]int{} // by the sender that has them
	for i, s := range c.Senders {
		for j, user := range s.BasicAuthUsers {
			if first, bound := users[user]; bound && c.Senders[first].Tenant != s.Tenant {
				errs = append(errs, config.Fault(fmt.Sprintf("senders[%d].basic_auth_users[%d]", i, j), "is bound to another tenant by senders[%d]", first))
			} else if !bound {
				users[user] = i
			}
		}
	}
	return errors.Join(append(errs, door.CheckTokens(c.tokenSources("")))...)
}

// checkTopicTenants returns a fault for each sender whose tenant no topic can hold.
func (c HTTPConfig) checkTopicTenants() error {
	var errs []error
	for i, s := range c.Senders {
		if checkTenant(s.Tenant) == nil && checkTopicTenant(s.Tenant) != nil {
			errs = append(errs, config.Fault(fmt.Sprintf("http.senders[%d].tenant", i), "cannot stand in the topic's name, see topic: got %q", s.Tenant))
		}
	}
	return errors.Join(errs...)
}

func blank(token secret.String) bool { return strings.TrimSpace(token.Reveal()) == "" }

// wantsTokens reports whether a bearer token is asked for.
func (c HTTPConfig) wantsTokens() bool {
	return len(c.BearerTokens) > 0 || c.BearerTokenFile != "" ||
		slices.ContainsFunc(c.Senders, func(s SenderConfig) bool { return len(s.BearerTokens) > 0 || s.BearerTokenFile != "" })
}

// checkFiles returns what is wrong with the files that the server's keys name, where the
// keys themselves are right.
func (c HTTPConfig) checkFiles() error {
	if len(config.Validate(c)) > 0 {
		return nil
	}
	_, err := newTokens(zap.NewNop(), c)
	return errors.Join(c.check(), err)
}

// check returns what is wrong with the web configuration file.
func (c HTTPConfig) check() error {
	users := map[string]any{}
	if c.WebConfigFile != "" {
		if err := web.Validate(c.WebConfigFile); err != nil {
			return config.Fault("http.web_config_file", "%s: %v", c.WebConfigFile, err)
		}
		text, err := os.ReadFile(c.WebConfigFile)
		if err != nil {
			return err
		}
		var file struct {
			Users map[string]any `yaml:"basic_auth_users"`
		}
		if err := yaml.Unmarshal(text, &file); err != nil {
			return err
		}
		users = file.Users
	}
	if len(users) > 0 && c.wantsTokens() {
		return config.Fault("http.web_config_file", "has basic_auth_users, which cannot be combined with bearer tokens: a request has one Authorization header")
	}
	for i, s := range c.Senders {
		for j, user := range s.BasicAuthUsers {
			if _, known := users[user]; !known {
				return config.Fault(fmt.Sprintf("http.senders[%d].basic_auth_users[%d]", i, j), "is not one of basic_auth_users in http.web_config_file")
			}
		}
	}
	return nil
}

// senders tells who may write, and as which tenant.
type senders struct {
	tokens *door.Tokens      // nil where none is asked for
	users  map[string]string // the tenant of those that are bound
}

// tokenSources are the keys that have bearer tokens. prefix is that of their names.
func (c HTTPConfig) tokenSources(prefix string) []door.TokenSource {
	all := []door.TokenSource{{
		Tokens: c.BearerTokens, TokensKey: prefix + "bearer_tokens", File: c.BearerTokenFile, FileKey: prefix + "bearer_token_file",
	}}
	for i, s := range c.Senders {
		key := fmt.Sprintf("%ssenders[%d].", prefix, i)
		all = append(all, door.TokenSource{
			Tenant: s.Tenant, Tokens: s.BearerTokens, TokensKey: key + "bearer_tokens", File: s.BearerTokenFile, FileKey: key + "bearer_token_file",
		})
	}
	return all
}

// newTokens returns nil when no token is asked for.
func newTokens(log *zap.Logger, c HTTPConfig) (*door.Tokens, error) {
	if !c.wantsTokens() {
		return nil, nil //nolint:nilnil // nil is the tokens that nobody needs
	}
	return door.NewTokens(log, c.tokenSources("http."))
}

func newSenders(log *zap.Logger, c HTTPConfig) (*senders, error) {
	t, err := newTokens(log, c)
	if err != nil {
		return nil, err
	}
	s := &senders{tokens: t, users: map[string]string{}}
	for _, sender := range c.Senders {
		for _, user := range sender.BasicAuthUsers {
			s.users[user] = sender.Tenant
		}
	}
	return s, nil
}

var (
	errUnauthorized = &door.Refusal{Status: http.StatusUnauthorized, Reason: "unauthorized", Text: "a valid bearer token is needed"}
	errForbidden    = &door.Refusal{Status: http.StatusForbidden, Reason: "forbidden_tenant",
		Text: "this sender may write as its own tenant only, and " + tenantHeader + " names another one"}
)

// admit tells whether the sender of a request may write. Of one that is bound to a
// tenant the request names that tenant from here on.
func (s *senders) admit(r *http.Request) error {
	bound, err := s.boundTo(r)
	if err != nil || bound == "" {
		return err
	}
	named, err := tenantOf(r.Header)
	if err != nil {
		return err
	}
	if named != "" && named != bound {
		return errForbidden
	}
	r.Header.Set(tenantHeader, bound)
	return nil
}

// boundTo returns the tenant of the request's sender, empty where it may be any.
func (s *senders) boundTo(r *http.Request) (tenant string, err error) {
	if s.tokens != nil {
		tenant, known := s.tokens.Tenant(door.Bearer(r))
		if !known {
			return "", errUnauthorized
		}
		return tenant, nil
	}
	user, _, _ := r.BasicAuth() // which the web configuration file has checked
	return s.users[user], nil
}

// guard asks who sends a request before anything of it is read.
func (v *receiver) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := v.settings.Load().senders.admit(r)
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		if errors.Is(err, errUnauthorized) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="nightingale"`)
		}
		v.refuse(w, r, err)
	})
}
