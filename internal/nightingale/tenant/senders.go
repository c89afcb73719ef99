package tenant

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
	"github.com/aviaryhq/aviary/pkg/secret"
)

// AccessConfig says who may write, and as which tenant. Its keys are those of section http.
type AccessConfig struct {
	// WebConfigFile is a web configuration file of Prometheus' exporter-toolkit: TLS, client
	// certificates, basic authentication. Default: none.
	WebConfigFile string `yaml:"web_config_file"`
	// BearerTokens are tokens with which senders may write. Default: senders need no token.
	BearerTokens []secret.String `yaml:"bearer_tokens"`
	// BearerTokenFile is a file with tokens with which senders may write, one on each line. Nightingale
	// reads it again every ten seconds. Default: none.
	BearerTokenFile string `yaml:"bearer_token_file"`
	// Senders binds senders to tenants: a bound sender may write only as its tenant. Senders that
	// are not bound may write as any tenant. Default: none.
	Senders []SenderConfig `yaml:"senders"`
}

// SenderConfig binds senders to a tenant. Their requests belong to that tenant, with or without the
// header X-Scope-OrgID. A request that names another tenant gets 403.
type SenderConfig struct {
	// Tenant is the tenant that the senders write as. Required.
	Tenant string `yaml:"tenant"`
	// BearerTokens are the tokens of the senders. A token may be bound to one tenant only. Default:
	// none.
	BearerTokens []secret.String `yaml:"bearer_tokens"`
	// BearerTokenFile is a file with tokens of the senders, one on each line. Nightingale reads it
	// again every ten seconds. Default: none.
	BearerTokenFile string `yaml:"bearer_token_file"`
	// BasicAuthUsers are the users of the senders. Each must be in basic_auth_users of
	// http.web_config_file. Default: none.
	BasicAuthUsers []string `yaml:"basic_auth_users"`
}

// Validate returns every fault of a binding, without regard to other bindings.
func (c SenderConfig) Validate() error {
	errs := []error{config.Require(c.Tenant != "", "tenant", "must name the tenant")}
	if err := Check(c.Tenant); err != nil {
		errs = append(errs, config.Fault("tenant", "%v", err))
	}
	if len(c.BearerTokens)+len(c.BasicAuthUsers) == 0 && c.BearerTokenFile == "" {
		errs = append(errs, errors.New("must have bearer_tokens, bearer_token_file or basic_auth_users"))
	}
	for i, token := range c.BearerTokens {
		errs = append(errs, config.Require(!blank(token), fmt.Sprintf("bearer_tokens[%d]", i), "must not be empty"))
	}
	for i, user := range c.BasicAuthUsers {
		errs = append(errs, config.Require(user != "", fmt.Sprintf("basic_auth_users[%d]", i), "must not be empty"))
	}
	return errors.Join(errs...)
}

// Validate returns every fault of the keys of this level. Check returns those of all keys together.
func (c AccessConfig) Validate() error {
	return config.Require(!slices.ContainsFunc(c.BearerTokens, blank), "bearer_tokens", "must not be empty")
}

func blank(token secret.String) bool { return strings.TrimSpace(token.Reveal()) == "" }

// Check reads the files that the keys name. It returns their faults, and those of senders that are
// bound to two tenants.
func (c AccessConfig) Check() error {
	_, err := NewSenders(zap.NewNop(), c)
	users, webErr := c.webUsers()
	if webErr == nil && len(users) > 0 && c.wantsTokens() {
		webErr = config.Fault("http.web_config_file", "has basic_auth_users, which cannot be combined with bearer tokens: "+
			"a request has one Authorization header")
	}
	errs := []error{err, webErr}
	firstOf := map[string]int{} // index of the first sender with a user
	for i, s := range c.Senders {
		for j, user := range s.BasicAuthUsers {
			key := fmt.Sprintf("http.senders[%d].basic_auth_users[%d]", i, j)
			_, known := users[user]
			known = known || webErr != nil
			errs = append(errs, config.Require(known, key, "is not one of basic_auth_users in http.web_config_file"))
			if first, bound := firstOf[user]; !bound {
				firstOf[user] = i
			} else if c.Senders[first].Tenant != s.Tenant {
				errs = append(errs, config.Fault(key, "is bound to another tenant by senders[%d]", first))
			}
		}
	}
	return errors.Join(errs...)
}

// webUsers returns the users of the web configuration file.
func (c AccessConfig) webUsers() (map[string]any, error) {
	if c.WebConfigFile == "" {
		return nil, nil
	}
	if err := web.Validate(c.WebConfigFile); err != nil {
		return nil, config.Fault("http.web_config_file", "%s: %v", c.WebConfigFile, err)
	}
	text, err := os.ReadFile(c.WebConfigFile)
	if err != nil {
		return nil, err
	}
	var file struct {
		Users map[string]any `yaml:"basic_auth_users"`
	}
	err = yaml.Unmarshal(text, &file)
	return file.Users, err
}

// wantsTokens reports whether senders need a bearer token.
func (c AccessConfig) wantsTokens() bool {
	return slices.ContainsFunc(c.tokenSources(), func(s bearer.Source) bool { return len(s.Tokens) > 0 || s.File != "" })
}

// tokenSources returns the keys that hold bearer tokens.
func (c AccessConfig) tokenSources() []bearer.Source {
	all := []bearer.Source{{
		Tokens: bearer.List(c.BearerTokens, "http.bearer_tokens"), File: c.BearerTokenFile, FileKey: "http.bearer_token_file",
	}}
	for i, s := range c.Senders {
		key := fmt.Sprintf("http.senders[%d].", i)
		all = append(all, bearer.Source{
			Tenant: s.Tenant, Tokens: bearer.List(s.BearerTokens, key+"bearer_tokens"),
			File: s.BearerTokenFile, FileKey: key + "bearer_token_file",
		})
	}
	return all
}

// Senders says which senders may write, and as which tenant.
type Senders struct {
	tokens *bearer.Tokens    // nil: senders need no token
	users  map[string]string // tenants of bound users
}

// NewSenders reads the files of tokens.
func NewSenders(log *zap.Logger, c AccessConfig) (*Senders, error) {
	s := &Senders{users: map[string]string{}}
	for _, sender := range c.Senders {
		for _, user := range sender.BasicAuthUsers {
			s.users[user] = sender.Tenant
		}
	}
	if !c.wantsTokens() {
		return s, nil
	}
	var err error
	s.tokens, err = bearer.NewTokens(log, c.tokenSources())
	return s, err
}

// Admit returns an error if the sender of a request may not write. If the sender is bound to a
// tenant, Admit sets the request's tenant header.
func (s *Senders) Admit(r *http.Request) error {
	var bound string
	if s.tokens != nil {
		var known bool
		if bound, known = s.tokens.Tenant(bearer.Token(r)); !known {
			return &refusal.Error{Status: http.StatusUnauthorized, Reason: "unauthorized", Text: "a valid bearer token is needed"}
		}
	} else {
		user, _, _ := r.BasicAuth() // the server has already checked the password with the web configuration file
		bound = s.users[user]
	}
	if bound == "" {
		return nil
	}
	named, err := Of(r.Header)
	if err != nil {
		return err
	}
	if named != "" && named != bound {
		return &refusal.Error{Status: http.StatusForbidden, Reason: "forbidden_tenant",
			Text: "this sender may write as its own tenant only, and " + Header + " names another one"}
	}
	r.Header.Set(Header, bound)
	return nil
}
