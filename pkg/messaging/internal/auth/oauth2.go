package auth

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar/auth"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// ErrIssuerUnavailable marks failures of an issuer that may pass by themselves.
var ErrIssuerUnavailable = errors.New("the issuer of tokens does not answer")

// oauth2Provider gets tokens by the client credentials flow with the secret in the form, as
// Pulsar's own clients do. It finds the address that gives tokens by OpenID Connect discovery.
//
// The underlying client's own (pulsar-client-go v0.21.0, oauth2) has no timeout, takes an error
// page for a discovery document, and uses a token that a broker refused until it expires. The
// token sources of x/oauth2 never renew a token without a lifetime, cannot forget one that was
// refused, and do not read the key file again: only its request is used.
type oauth2Provider struct {
	auth.Provider // what only lookups over HTTP need
	cfg           OAuth2
	http          *http.Client

	mu      sync.Mutex
	token   secret.String
	expires time.Time
}

// oauth2Key is the key file's content.
type oauth2Key struct {
	ClientID     string        `json:"client_id"`
	ClientSecret secret.String `json:"client_secret"`
	IssuerURL    string        `json:"issuer_url"`
	Scope        string        `json:"scope"`
}

const maxIssuerAnswer = 1 << 20

func newOAuth2Provider(cfg OAuth2, timeout time.Duration) (*oauth2Provider, error) {
	transport := &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true, // a token lasts longer than a connection would be kept
	}
	if cfg.CAFile != "" {
		pool, err := ReadCA(cfg.CAFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &oauth2Provider{
		Provider: auth.NewAuthDisabled(),
		cfg:      cfg,
		http: &http.Client{
			Transport: transport,
			Timeout:   timeout,
			CheckRedirect: func(req *http.Request, via []*http.Request) error {
				if via[0].Method == http.MethodPost || len(via) > 3 || CheckIssuer(req.URL.String()) != nil {
					return http.ErrUseLastResponse // the secret goes where discovery says, nowhere else
				}
				return nil
			},
		},
	}, nil
}

// Init reads the key file, so that a broken one is found early. The first connection asks the
// issuer.
func (p *oauth2Provider) Init() error { return CheckKeyFile(p.cfg) }

// Name is that of the method which brokers see: the token is all they get.
func (p *oauth2Provider) Name() string { return "token" }

// GetData returns a token that is still valid for a while.
func (p *oauth2Provider) GetData() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.token == "" || !time.Now().Before(p.expires) {
		if err := p.renew(); err != nil {
			return nil, fmt.Errorf("oauth2: %w", err)
		}
	}
	return []byte(p.token.Reveal()), nil
}

// forget drops a token that a broker refused.
func (p *oauth2Provider) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.token = ""
}

func (p *oauth2Provider) renew() error {
	key, err := readKey(p.cfg)
	if err != nil {
		return err
	}
	endpoint, err := p.discover(key.IssuerURL)
	if err != nil {
		return err
	}
	client := clientcredentials.Config{
		ClientID:     key.ClientID,
		ClientSecret: key.ClientSecret.Reveal(),
		TokenURL:     endpoint,
		Scopes:       strings.Fields(p.cfg.Scope + " " + key.Scope),
		AuthStyle:    oauth2.AuthStyleInParams,
	}
	if p.cfg.Audience != "" {
		client.EndpointParams = url.Values{"audience": {p.cfg.Audience}}
	}
	began := time.Now()
	// The underlying client gives no context. The HTTP client's timeout bounds the request.
	token, err := client.Token(context.WithValue(context.Background(), oauth2.HTTPClient, p.http))
	if err != nil {
		return tokenError(endpoint, err)
	}
	// A token without a lifetime is asked for again at the next connection.
	var life time.Duration
	if !token.Expiry.IsZero() {
		life = time.Until(token.Expiry)
	}
	p.token, p.expires = secret.String(token.AccessToken), began.Add(life-min(life/10, time.Minute))
	return nil
}

// tokenError explains why there is no token. The library's own texts may quote the answer, which
// may hold a token.
func tokenError(endpoint string, err error) error {
	var refusal *oauth2.RetrieveError
	var transport *url.Error
	switch {
	case errors.As(err, &refusal):
		return answerError(http.MethodPost, endpoint, refusal.Response, refusal.ErrorCode, refusal.ErrorDescription)
	case errors.As(err, &transport):
		return requestError(err)
	case strings.HasPrefix(err.Error(), "oauth2: cannot fetch token"): // its body was cut off
		return ErrIssuerUnavailable
	case strings.Contains(err.Error(), "missing access_token"):
		return errors.New("the issuer's answer holds no access_token")
	default:
		return fmt.Errorf("%s %s: the answer is not the JSON expected", http.MethodPost, endpoint)
	}
}

// discover asks the issuer for the address that gives tokens.
func (p *oauth2Provider) discover(issuer string) (string, error) {
	at := strings.TrimRight(issuer, "/") + "/.well-known/openid-configuration"
	// The HTTP client's timeout bounds the request, as it does for tokens.
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, at, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := p.http.Do(req)
	if err != nil {
		return "", requestError(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxIssuerAnswer))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrIssuerUnavailable, err)
	}
	var answer struct {
		TokenEndpoint string `json:"token_endpoint"`
		Error         string `json:"error"`
		Description   string `json:"error_description"`
	}
	wrong := json.Unmarshal(data, &answer)
	if resp.StatusCode != http.StatusOK { // an answer of another kind has its status only
		return "", answerError(req.Method, at, resp, answer.Error, answer.Description)
	}
	if wrong != nil {
		return "", fmt.Errorf("%s %s: the answer is not the JSON expected", req.Method, at)
	}
	if err := CheckIssuer(answer.TokenEndpoint); err != nil {
		return "", fmt.Errorf("the issuer's token_endpoint: %w", err)
	}
	return answer.TokenEndpoint, nil
}

// requestError is the error of a request that got no answer. An issuer that is not trusted stays
// so.
func requestError(err error) error {
	if untrusted := (*tls.CertificateVerificationError)(nil); errors.As(err, &untrusted) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrIssuerUnavailable, err)
}

// answerError is the error of an answer without what was asked for.
func answerError(method, at string, resp *http.Response, code, description string) error {
	text := strings.Join(strings.Fields(resp.Status+" "+code+" "+description), " ")
	if resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests {
		return fmt.Errorf("%w: %s %s: %s", ErrIssuerUnavailable, method, at, text)
	}
	return fmt.Errorf("%s %s: %s", method, at, text)
}

// CheckKeyFile reads the key file and reports what is wrong with it.
func CheckKeyFile(o OAuth2) error {
	_, err := readKey(o)
	return err
}

func readKey(o OAuth2) (oauth2Key, error) {
	var key oauth2Key
	data, err := os.ReadFile(o.KeyFile)
	if err != nil {
		return key, fmt.Errorf("cannot read key_file: %w", Bare(err))
	}
	if err := json.Unmarshal(bytes.TrimSpace(data), &key); err != nil {
		return key, errors.New("key_file must be JSON with strings client_id, client_secret and issuer_url")
	}
	key.IssuerURL = cmp.Or(o.IssuerURL, key.IssuerURL)
	if key.ClientID == "" || key.ClientSecret == "" {
		return key, errors.New("key_file must hold client_id and client_secret")
	}
	if err := CheckIssuer(key.IssuerURL); err != nil {
		return key, fmt.Errorf("issuer_url: %w", err)
	}
	return key, nil
}

// CheckIssuer reports what is wrong with an issuer's URL. It wants https, for what goes there is a
// password. Plain http is for issuers on this machine.
func CheckIssuer(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("must be an https URL of a host, without user, query or fragment")
	}
	if u.Scheme == "https" || u.Scheme == "http" && Local(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("must be an https URL, or http to this machine, got %q", s)
}
