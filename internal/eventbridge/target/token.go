package target

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

const (
	// tokenTimeout bounds the fetch of a token: one or two HTTP requests.
	tokenTimeout = 20 * time.Second
	// tokenEarly is how long before its expiry a token is not used any more.
	tokenEarly = 10 * time.Second
	// tokenPause is the least time between two fetches: the receiver that accepts no token, or the
	// token server that fails, must not cause a request for each delivery.
	tokenPause = time.Second
)

// tokens fetches OAuth2 tokens by the client credentials flow. It is safe for concurrent use:
// callers that need a new token at the same time share one fetch.
type tokens struct {
	flow   clientcredentials.Config
	ctx    context.Context // of fetches
	cancel context.CancelFunc

	mu       sync.Mutex
	header   string        // of the last fetch, such as "Bearer xyz"
	err      error         // of the last fetch
	until    time.Time     // when the next fetch is due
	dropped  time.Time     // when a token was last dropped
	fetching chan struct{} // closed at the end of the fetch under way; nil for none
}

func newTokens(c *model.OAuth2, transport http.RoundTripper) *tokens {
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), oauth2.HTTPClient, client))
	return &tokens{ctx: ctx, cancel: cancel, flow: clientcredentials.Config{
		ClientID: c.ClientID, ClientSecret: c.ClientSecret.Reveal(), TokenURL: c.TokenURL, Scopes: c.Scopes,
	}}
}

// get returns the value of the header Authorization.
func (t *tokens) get(ctx context.Context) (string, error) {
	for {
		t.mu.Lock()
		if time.Now().Before(t.until) {
			defer t.mu.Unlock()
			return t.header, t.err
		}
		if t.fetching == nil {
			t.fetching = make(chan struct{})
			go t.fetch() // in its own goroutine: others may wait for it when the caller's time is over
		}
		fetching := t.fetching
		t.mu.Unlock()
		select {
		case <-fetching:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// drop makes the next get fetch a new token, unless header was replaced meanwhile, or a token was
// dropped a moment ago.
func (t *tokens) drop(header string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.header == header && now.Sub(t.dropped) >= tokenPause {
		t.until, t.dropped = time.Time{}, now
	}
}

func (t *tokens) fetch() {
	ctx, cancel := context.WithTimeout(t.ctx, tokenTimeout)
	defer cancel()
	token, err := t.flow.Token(ctx)
	if err == nil && !validToken(token) {
		err = errors.New("the token cannot be in an HTTP header")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.fetching)
	t.fetching = nil
	t.header, t.err, t.until = "", tokenError(err), time.Now().Add(tokenPause)
	if err != nil {
		return
	}
	t.header = token.Type() + " " + token.AccessToken
	if early := token.Expiry.Add(-tokenEarly); early.After(t.until) {
		t.until = early
	} else if token.Expiry.IsZero() {
		t.until = t.until.AddDate(100, 0, 0) // it does not expire
	}
}

func validToken(t *oauth2.Token) bool {
	return t.AccessToken != "" && httpguts.ValidHeaderFieldValue(t.Type()+" "+t.AccessToken)
}

// errorCodes are the error codes that are shown (RFC 6749, section 5.2): others may hold secrets.
const errorCodes = " invalid_request invalid_client invalid_grant unauthorized_client unsupported_grant_type invalid_scope "

// tokenError returns an error for people: short, and without what the server sent, except for its
// error code.
func tokenError(err error) error {
	var failed *oauth2.RetrieveError
	var refused *RefusedAddress
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return fmt.Errorf("token_url: %w", refused)
	case errors.As(err, &failed) && strings.Contains(errorCodes, " "+failed.ErrorCode+" "):
		return fmt.Errorf("token_url answered %d: %s", failed.Response.StatusCode, failed.ErrorCode)
	case errors.As(err, &failed):
		return fmt.Errorf("token_url answered %d", failed.Response.StatusCode)
	}
	if sent := (*url.Error)(nil); errors.As(err, &sent) {
		err = sent.Err // without the URL
	}
	return fmt.Errorf("token_url: %w", err)
}
