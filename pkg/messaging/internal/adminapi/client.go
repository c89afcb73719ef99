package adminapi

import (
	"bytes"
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
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
)

const (
	// readTimeout bounds a request that changes nothing, with its redirects.
	readTimeout = 5 * time.Second
	// changeTimeout bounds a request that changes something, with its redirects: creating many
	// partitions takes a while.
	changeTimeout = 30 * time.Second
	// maxAnswer bounds one answer, unpacked, other than a message.
	maxAnswer = 4 << 20
	// maxRedirects: a broker redirects to the topic's owner, which may have changed meanwhile.
	maxRedirects = 3
	// concurrency is how many requests one call has under way at once.
	concurrency = 4
)

// client sends requests to the admin API of one cluster. It tries each request once.
type client struct {
	base        string // without a slash at the end
	http        *http.Client
	credentials auth.Credentials // nil: none
	refused     func()           // is called when the credentials are refused

	mu   sync.Mutex
	uses int // that have not ended
}

// newClient connects to nothing.
func newClient(cfg cluster.Config, faults *auth.Faults) (*client, error) {
	credentials, trusted, err := cluster.Credentials(cfg, faults)
	if err != nil {
		return nil, err
	}
	if credentials != nil {
		if err := credentials.Init(); err != nil {
			return nil, fmt.Errorf("messaging: auth: %w", err)
		}
	}
	c := &client{base: strings.TrimRight(cfg.AdminURL, "/"), credentials: credentials, refused: faults.Refused}
	c.http = &http.Client{
		CheckRedirect: c.mayFollow,
		Transport: &http.Transport{
			// Not the environment's proxy: a proxy of plain http would see the credentials.
			Proxy:               nil,
			DialContext:         (&net.Dialer{Timeout: cfg.ConnectTimeout}).DialContext,
			TLSHandshakeTimeout: cfg.ConnectTimeout,
			MaxIdleConnsPerHost: concurrency,
			IdleConnTimeout:     readTimeout,
			TLSClientConfig: &tls.Config{
				MinVersion:           tls.VersionTLS12,
				RootCAs:              trusted,
				InsecureSkipVerify:   cfg.TLS.Insecure, //nolint:gosec // the operator asked for it
				GetClientCertificate: c.certificate,
			},
		},
	}
	return c, nil
}

// use begins a use; done ends it. The end of the last use closes the connections, so that the next
// use sees rotated certificates. While a request is under way they must stay open: net/http (Go
// 1.26) counts the connection of an answer without a body as idle before the request returns, and
// the request would fail with "CloseIdleConnections called".
func (c *client) use() (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses++
	return func() {
		c.mu.Lock() // kept while connections are closed: a use that begins now waits
		defer c.mu.Unlock()
		if c.uses--; c.uses == 0 {
			c.http.CloseIdleConnections()
		}
	}
}

// certificate is the client's, read again at every connection; an empty one for none.
func (c *client) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if c.credentials == nil {
		return &tls.Certificate{}, nil
	}
	cert, err := c.credentials.GetTLSCertificate()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", auth.ErrAuthentication, err)
	}
	if cert == nil {
		cert = &tls.Certificate{}
	}
	return cert, nil
}

// mayFollow decides about redirects: a broker redirects to the broker that serves the topic.
// Credentials go to the configured host only.
func (c *client) mayFollow(req *http.Request, via []*http.Request) error {
	from, to := via[0].URL, req.URL
	switch {
	case len(via) > maxRedirects:
		return errors.New("too many redirects")
	case from.Scheme == "https" && to.Scheme != "https":
		return fmt.Errorf("redirected to %s, which is not https", to.Host)
	case c.credentials != nil && (from.Scheme != to.Scheme || !strings.EqualFold(from.Host, to.Host)):
		return fmt.Errorf("redirected to %s, and credentials go to admin_url only: "+
			"with several brokers and authentication it must be a Pulsar proxy's", to.Host)
	case req.Method != via[0].Method: // http turns a POST into a GET at some of them
		return fmt.Errorf("redirected to %s, with another request", to.Host)
	}
	return nil
}

// get decodes the answer to a GET.
func get[T any](ctx context.Context, c *client, path string) (answer T, err error) {
	err = c.do(ctx, http.MethodGet, path, nil, &answer)
	return answer, err
}

// do sends in as JSON, unless it is nil, and decodes the answer into out, unless that is nil. path
// begins with a slash.
func (c *client) do(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	_, data, err := c.ask(ctx, method, path, body, maxAnswer)
	if err != nil || out == nil {
		return err
	}
	return c.decode(data, out)
}

// decode takes an answer apart.
func (c *client) decode(data []byte, out any) error {
	if json.Unmarshal(data, out) != nil { // the error would quote what may be anything
		return fmt.Errorf("%s: %w", c.base, errNotTheAPI)
	}
	return nil
}

var (
	errTooLarge  = errors.New("larger")
	errNotTheAPI = errors.New("the answer is not the JSON of Pulsar's admin API")
)

// ask returns the answer to one request, which has at most limit bytes.
func (c *client) ask(ctx context.Context, method, path string, body []byte, limit int64) (http.Header, []byte, error) {
	timeout := changeTimeout
	if method == http.MethodGet {
		timeout = readTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	header, data, err := c.try(ctx, method, path, body, limit)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", c.base, err)
	}
	return header, data, nil
}

func (c *client) try(ctx context.Context, method, path string, body []byte, limit int64) (http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", "application/json, application/octet-stream")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	token, err := c.token(ctx)
	if err != nil {
		return nil, nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // its URL is long, and says nothing that callers do not
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "tls: "):
		return nil, nil, fmt.Errorf("%w: %w", auth.ErrTLS, err)
	case err != nil:
		return nil, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, nil, c.refusal(resp.StatusCode, data)
	}
	if int64(len(data)) > limit {
		return nil, nil, fmt.Errorf("the answer is %w than %d bytes", errTooLarge, limit)
	}
	return resp.Header, data, nil
}

// refusal is the error of an answer other than 2xx. Pulsar gives its reason in JSON, but for
// credentials that it refuses: filters in front of the API do that.
func (c *client) refusal(status int, body []byte) error {
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
		c.refused() // the next request gets a new token where tokens are issued
		return fmt.Errorf("%w: %s", auth.ErrAuthentication, text)
	case reason != "":
		text += ": " + reason
	}
	if known || status == http.StatusForbidden {
		return fmt.Errorf("%w: %s", auth.ErrAuthorization, text)
	}
	return &statusError{code: status, text: text}
}

// token returns the bearer token for a request, empty for none.
func (c *client) token(ctx context.Context) (string, error) {
	if c.credentials == nil {
		return "", nil
	}
	token, err := clientquirks.CallUntil(ctx, c.credentials.GetData, nil)
	if err != nil && ctx.Err() == nil && !errors.Is(err, auth.ErrIssuerUnavailable) {
		err = fmt.Errorf("%w: %w", auth.ErrAuthentication, err)
	}
	return string(token), err
}
