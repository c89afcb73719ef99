package messaging

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar/auth"
	"go.uber.org/zap"
)

// ErrNoAdminURL is returned by what asks the brokers' admin API when no
// [Config].AdminURL is set.
var ErrNoAdminURL = errors.New("messaging: no admin_url is set, the address of the brokers' admin API")

const (
	// adminTimeout bounds one request, with its redirects.
	adminTimeout = 5 * time.Second
	// adminMaxAnswer bounds one answer, unpacked.
	adminMaxAnswer = 4 << 20
	// adminMaxRedirects is how often one request may be sent on: a broker names the
	// topic's owner, which may have changed meanwhile.
	adminMaxRedirects = 3
)

// admin asks the brokers' admin API, with the client's credentials and TLS settings.
// It is safe for concurrent use.
type admin struct {
	base   string // without a slash at the end
	http   *http.Client
	auth   auth.Provider // nil: none
	faults *faults
}

// newAdmin returns nil when cfg has no AdminURL.
func newAdmin(cfg Config, log *zap.Logger) (*admin, error) {
	if cfg.AdminURL == "" {
		return nil, nil
	}
	a := &admin{base: strings.TrimRight(cfg.AdminURL, "/"), faults: newFaults(log)}
	provider, err := cfg.Auth.provider(cfg.ConnectTimeout, a.faults)
	if err != nil {
		return nil, fmt.Errorf("messaging: auth: %w", err)
	}
	if provider != nil {
		p, ok := provider.(auth.Provider)
		if !ok {
			return nil, fmt.Errorf("messaging: auth: %T has no credentials for admin_url", provider)
		}
		if err := p.Init(); err != nil {
			return nil, fmt.Errorf("messaging: auth: %w", err)
		}
		a.auth = p
	}
	transport := &http.Transport{
		// Not the environment's: it was meant for the way out, and a proxy of plain
		// http would see the credentials.
		Proxy:               nil,
		DialContext:         (&net.Dialer{Timeout: cfg.ConnectTimeout}).DialContext,
		TLSHandshakeTimeout: cfg.ConnectTimeout,
		MaxIdleConnsPerHost: adminConcurrency,
		IdleConnTimeout:     adminTimeout,
		TLSClientConfig: &tls.Config{
			MinVersion:           tls.VersionTLS12,
			InsecureSkipVerify:   cfg.TLS.Insecure, //nolint:gosec // as the configuration says, which calls it by its name
			GetClientCertificate: a.certificate,
		},
	}
	if cfg.TLS.CAFile != "" {
		if transport.TLSClientConfig.RootCAs, err = readCA(cfg.TLS.CAFile); err != nil {
			return nil, fmt.Errorf("messaging: tls.ca_file: %w", err)
		}
	}
	a.http = &http.Client{Transport: transport, CheckRedirect: a.mayFollow}
	return a, nil
}

// certificate is the client's, read again at every connection; an empty one for none.
func (a *admin) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if a.auth == nil {
		return &tls.Certificate{}, nil
	}
	cert, err := a.auth.GetTLSCertificate()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAuthentication, err)
	}
	if cert == nil {
		cert = &tls.Certificate{}
	}
	return cert, nil
}

// mayFollow decides about redirects. A broker sends those who ask about a topic that it
// does not serve to the one that does. Credentials stay with the host that was
// configured: where an answer points to is not a matter of trust.
func (a *admin) mayFollow(req *http.Request, via []*http.Request) error {
	from, to := via[0].URL, req.URL
	switch {
	case len(via) > adminMaxRedirects:
		return errors.New("sent on too often")
	case from.Scheme == "https" && to.Scheme != "https":
		return fmt.Errorf("sent on to %s, which is not https", to.Host)
	case a.auth != nil && (from.Scheme != to.Scheme || !strings.EqualFold(from.Host, to.Host)):
		return fmt.Errorf("sent on to %s, and credentials go to admin_url only: with several brokers and authentication it must be a Pulsar proxy's", to.Host)
	}
	return nil
}

// adminStatus is an answer other than 200.
type adminStatus struct {
	code int
	text string
}

func (e *adminStatus) Error() string { return e.text }

// missing reports whether the API says that there is no such thing.
func missing(err error) bool {
	var status *adminStatus
	return errors.As(err, &status) && status.code == http.StatusNotFound
}

// get decodes the answer to a GET of path, which begins with a slash, into out.
func (a *admin) get(ctx context.Context, path string, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, adminTimeout, fmt.Errorf("no answer within %s", adminTimeout))
	defer cancel()
	err := a.try(ctx, path, out)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a.base, err)
	}
	return nil
}

func (a *admin) try(ctx context.Context, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	token, err := a.token(ctx)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := a.http.Do(req)
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // its URL is long, and says nothing that callers do not
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "tls: "):
		return fmt.Errorf("%w: %w", ErrTLS, err)
	case err != nil:
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, adminMaxAnswer+1))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return a.refusal(resp.StatusCode, data)
	}
	if len(data) > adminMaxAnswer {
		return fmt.Errorf("the answer is larger than %d bytes", adminMaxAnswer)
	}
	if json.Unmarshal(data, out) != nil { // the error would quote what may be anything
		return errors.New("the answer is not the JSON of Pulsar's admin API")
	}
	return nil
}

// refusal is the error of an answer other than 200. Pulsar gives its reason in JSON, but
// for credentials that it refuses: filters in front of the API do that.
func (a *admin) refusal(status int, body []byte) error {
	text := fmt.Sprintf("%d %s", status, http.StatusText(status))
	var why struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(body, &why) // an answer of another kind has its status only
	reason, _, _ := strings.Cut(strings.TrimSpace(why.Reason), "\n")
	reason = strings.ToValidUTF8(reason[:min(len(reason), 200)], "")
	// A known role that lacks a permission gets a 401, too.
	known := status == http.StatusUnauthorized && strings.HasPrefix(reason, "Unauthorized to validate")
	switch {
	case status == http.StatusUnauthorized && !known:
		a.faults.refused() // the next request gets a new token where tokens are issued
		return fmt.Errorf("%w: %s", ErrAuthentication, text)
	case reason != "":
		text += ": " + reason
	}
	if known || status == http.StatusForbidden {
		return fmt.Errorf("%w: %s", ErrAuthorization, text)
	}
	return &adminStatus{code: status, text: text}
}

// token is the bearer token for a request, empty for none. The provider has no context:
// an issuer that answers late is left to its own timeout.
func (a *admin) token(ctx context.Context) (string, error) {
	if a.auth == nil {
		return "", nil
	}
	type result struct {
		token []byte
		err   error
	}
	got := make(chan result, 1)
	go func() {
		token, err := a.auth.GetData()
		got <- result{token, err}
	}()
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case r := <-got:
		if r.err != nil && !errors.Is(r.err, errIssuerAway) {
			return "", fmt.Errorf("%w: %w", ErrAuthentication, r.err)
		}
		return string(r.token), r.err
	}
}

// checkAdminURL returns the parts of an admin URL, or what is wrong with it.
func checkAdminURL(s string) (*url.URL, error) {
	if strings.Contains(s, "@") { // not repeated: what stands before it may be a password
		return nil, errors.New("must not hold credentials: they belong under auth")
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || !validPort(u.Port()) ||
		u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return nil, fmt.Errorf("must be http://host:port or https://host:port, got %q", s)
	}
	return u, nil
}

// local reports whether a host is this machine.
func local(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
