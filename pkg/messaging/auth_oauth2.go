package messaging

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
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

	"github.com/aviaryhq/aviary/pkg/secret"
)

// errIssuerAway marks failures of an issuer that may pass by themselves.
var errIssuerAway = errors.New("the issuer of tokens does not answer")

// oauth2Provider gets tokens by the client credentials flow (RFC 6749, section
// 4.4) with the secret in the form, as Pulsar's own clients do.
//
// The underlying client has its own (oauth2 folder of pulsar-client-go v0.21.0).
// Its requests have no timeout: an issuer that accepts connections and answers
// nothing holds up every connection to Pulsar for good. It takes an error page
// for a discovery document, fetches a token per connection when the issuer tells
// no lifetime, uses a token that a broker refused until it expires, and leaves
// connections open behind.
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
		pool, err := readCA(cfg.CAFile)
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
				if via[0].Method == http.MethodPost || len(via) > 3 || checkIssuer(req.URL.String()) != nil {
					return http.ErrUseLastResponse // the secret goes where discovery says, nowhere else
				}
				return nil
			},
		},
	}, nil
}

// Init reads the key file, so that a broken one is found early. The issuer is
// asked when the first connection is made.
func (p *oauth2Provider) Init() error {
	_, err := p.cfg.key()
	return err
}

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
	key, err := p.cfg.key()
	if err != nil {
		return err
	}
	endpoint, err := p.discover(key.IssuerURL)
	if err != nil {
		return err
	}
	form := url.Values{
		"grant_type":    {"client_credentials"},
		"client_id":     {key.ClientID},
		"client_secret": {key.ClientSecret.Reveal()},
	}
	if p.cfg.Audience != "" {
		form.Set("audience", p.cfg.Audience)
	}
	if scope := strings.Join(strings.Fields(p.cfg.Scope+" "+key.Scope), " "); scope != "" {
		form.Set("scope", scope)
	}
	var answer struct {
		AccessToken secret.String `json:"access_token"`
		ExpiresIn   json.Number   `json:"expires_in"` // in seconds; some issuers send a string
	}
	began := time.Now()
	if err := p.ask(http.MethodPost, endpoint, form, &answer); err != nil {
		return err
	}
	if answer.AccessToken == "" {
		return errors.New("the issuer's answer holds no access_token")
	}
	// A token without a lifetime is asked for again at the next connection.
	seconds, _ := answer.ExpiresIn.Float64()
	life := time.Duration(seconds * float64(time.Second))
	p.token, p.expires = answer.AccessToken, began.Add(life-min(life/10, time.Minute))
	return nil
}

// discover asks the issuer for the address that gives tokens.
func (p *oauth2Provider) discover(issuer string) (string, error) {
	var answer struct {
		TokenEndpoint string `json:"token_endpoint"`
	}
	at := strings.TrimRight(issuer, "/") + "/.well-known/openid-configuration"
	if err := p.ask(http.MethodGet, at, nil, &answer); err != nil {
		return "", err
	}
	if err := checkIssuer(answer.TokenEndpoint); err != nil {
		return "", fmt.Errorf("the issuer's token_endpoint: %w", err)
	}
	return answer.TokenEndpoint, nil
}

func (p *oauth2Provider) ask(method, at string, form url.Values, out any) error {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	// The underlying client gives no context; the HTTP client's timeout bounds this.
	req, err := http.NewRequestWithContext(context.Background(), method, at, body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := p.http.Do(req)
	if untrusted := (*tls.CertificateVerificationError)(nil); errors.As(err, &untrusted) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errIssuerAway, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxIssuerAnswer))
	if err != nil {
		return fmt.Errorf("%w: %w", errIssuerAway, err)
	}
	if resp.StatusCode != http.StatusOK {
		var refusal struct {
			Error       string `json:"error"`
			Description string `json:"error_description"`
		}
		_ = json.Unmarshal(data, &refusal) // an answer of another kind has its status only
		err := fmt.Errorf("%s %s: %s", method, req.URL.Redacted(), strings.Join(strings.Fields(
			fmt.Sprintf("%s %s %s", resp.Status, refusal.Error, refusal.Description)), " "))
		if resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests {
			return fmt.Errorf("%w: %w", errIssuerAway, err)
		}
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		// The decoder's error may quote the answer, which may hold a token.
		return fmt.Errorf("%s %s: the answer is not the JSON expected", method, req.URL.Redacted())
	}
	return nil
}

// key reads the key file.
func (o OAuth2) key() (oauth2Key, error) {
	var key oauth2Key
	data, err := os.ReadFile(o.KeyFile)
	if err != nil {
		return key, fmt.Errorf("cannot read key_file: %w", bare(err))
	}
	if err := json.Unmarshal(bytes.TrimSpace(data), &key); err != nil {
		return key, errors.New("key_file must be JSON with strings client_id, client_secret and issuer_url")
	}
	if o.IssuerURL != "" {
		key.IssuerURL = o.IssuerURL
	}
	if key.ClientID == "" || key.ClientSecret == "" {
		return key, errors.New("key_file must hold client_id and client_secret")
	}
	if err := checkIssuer(key.IssuerURL); err != nil {
		return key, fmt.Errorf("issuer_url: %w", err)
	}
	return key, nil
}

// checkIssuer wants https, for what goes there is a password. Plain http is for
// issuers on this machine.
func checkIssuer(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("must be an https URL of a host, without user, query or fragment")
	}
	if u.Scheme == "https" {
		return nil
	}
	if u.Scheme == "http" && local(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("must be an https URL, or http to this machine, got %q", s)
}

// readCA reads PEM certificates to trust.
func readCA(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s holds no PEM certificate", file)
	}
	return pool, nil
}
