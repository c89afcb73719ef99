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
	"github.com/aviaryhq/aviary/internal/httpserver/bearer"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/topic"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// SenderConfig binds senders to a tenant. Their requests belong to that tenant, with or without the
// header X-Scope-OrgID. A request that names another tenant gets 403.
type SenderConfig struct {
	// Tenant is the tenant that the senders write as. Required.
	Tenant string `yaml:"tenant"`
	// BearerTokens are the tokens of the senders. BearerTokenFile is a file with further tokens,
	// one on each line. A token may be bound to one tenant only. Default: none.
	BearerTokens    []secret.String `yaml:"bearer_tokens"`
	BearerTokenFile string          `yaml:"bearer_token_file"`
	// BasicAuthUsers are the users of the senders. Each must be in basic_auth_users of
	// http.web_config_file. Default: none.
	BasicAuthUsers []string `yaml:"basic_auth_users"`
}

// Validate returns every fault of a binding, without regard to other bindings.
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
	users := map[string]int{} // index of the first sender with a user
	for i, s := range c.Senders {
		for j, user := range s.BasicAuthUsers {
			if first, bound := users[user]; bound && c.Senders[first].Tenant != s.Tenant {
				errs = append(errs, config.Fault(fmt.Sprintf("senders[%d].basic_auth_users[%d]", i, j), "is bound to another tenant by senders[%d]", first))
			} else if !bound {
				users[user] = i
			}
		}
	}
	return errors.Join(append(errs, bearer.Check(c.tokenSources("")))...)
}

// checkTopicTenants returns a fault for each sender whose tenant cannot be part of a topic's name.
func (c HTTPConfig) checkTopicTenants() error {
	var errs []error
	for i, s := range c.Senders {
		if checkTenant(s.Tenant) == nil && topic.CheckTenant(s.Tenant) != nil {
			errs = append(errs, config.Fault(fmt.Sprintf("http.senders[%d].tenant", i), "cannot be part of the topic's name, see topic: got %q", s.Tenant))
		}
	}
	return errors.Join(errs...)
}

func blank(token secret.String) bool { return strings.TrimSpace(token.Reveal()) == "" }

// wantsTokens reports whether senders need a bearer token.
func (c HTTPConfig) wantsTokens() bool {
	return len(c.BearerTokens) > 0 || c.BearerTokenFile != "" ||
		slices.ContainsFunc(c.Senders, func(s SenderConfig) bool { return len(s.BearerTokens) > 0 || s.BearerTokenFile != "" })
}

// checkFiles returns faults of the files that the server's keys name. If the keys themselves are
// invalid, it returns nil.
func (c HTTPConfig) checkFiles() error {
	if len(config.Validate(c)) > 0 {
		return nil
	}
	_, err := newTokens(zap.NewNop(), c)
	return errors.Join(c.check(), err)
}

// check returns a fault of the web configuration file.
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

// senders says which senders may write, and as which tenant.
type senders struct {
	tokens *bearer.Tokens    // nil: token authentication is off
	users  map[string]string // tenants of bound users, by user
}

// tokenSources returns the keys that hold bearer tokens. prefix is the prefix of their names.
func (c HTTPConfig) tokenSources(prefix string) []bearer.Source {
	all := []bearer.Source{{
		Tokens: bearer.List(c.BearerTokens, prefix+"bearer_tokens"), File: c.BearerTokenFile, FileKey: prefix + "bearer_token_file",
	}}
	for i, s := range c.Senders {
		key := fmt.Sprintf("%ssenders[%d].", prefix, i)
		all = append(all, bearer.Source{
			Tenant: s.Tenant, Tokens: bearer.List(s.BearerTokens, key+"bearer_tokens"), File: s.BearerTokenFile, FileKey: key + "bearer_token_file",
		})
	}
	return all
}

// newTokens returns the valid tokens, or nil if token authentication is off.
func newTokens(log *zap.Logger, c HTTPConfig) (*bearer.Tokens, error) {
	if !c.wantsTokens() {
		return nil, nil //nolint:nilnil // nil: token authentication is off
	}
	return bearer.NewTokens(log, c.tokenSources("http."))
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
	errUnauthorized = &refusal.Error{Status: http.StatusUnauthorized, Reason: "unauthorized", Text: "a valid bearer token is needed"}
	errForbidden    = &refusal.Error{Status: http.StatusForbidden, Reason: "forbidden_tenant",
		Text: "this sender may write as its own tenant only, and " + tenantHeader + " names another one"}
)

// admit returns an error if the sender of a request may not write. If the sender is bound to a
// tenant, admit sets the request's tenant header.
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

// boundTo returns the tenant to which the request's sender is bound, empty if it is not bound.
func (s *senders) boundTo(r *http.Request) (tenant string, err error) {
	if s.tokens != nil {
		tenant, known := s.tokens.Tenant(bearer.Token(r))
		if !known {
			return "", errUnauthorized
		}
		return tenant, nil
	}
	user, _, _ := r.BasicAuth() // the server has already checked the password with the web configuration file
	return s.users[user], nil
}

// guard authenticates the sender of a request before the request's body is read.
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
