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
	// tokenTimeout bounds one HTTP request for a token.
	tokenTimeout = 10 * time.Second
	// tokenEarly is how long before its expiry a token is not used any more.
	tokenEarly = 10 * time.Second
	// tokenPause is how long a failure is returned to other callers before the next request. It is
	// also the least time between two drops of a token: a receiver that accepts no token must not
	// cause a token request for each delivery.
	tokenPause = time.Second
)

// tokens fetches and keeps one access token of the client credentials flow. It is safe for
// concurrent use: callers that need a new token at the same time share one request.
type tokens struct {
	flow   clientcredentials.Config
	client *http.Client
	life   context.Context // of token requests
	end    context.CancelFunc

	mu       sync.Mutex
	header   string    // "Bearer xyz", empty for none
	expires  time.Time // zero: never
	failed   error     // of the last request
	failedAt time.Time
	dropped  time.Time     // when a token was last dropped
	fetching chan struct{} // closed at the end of the request under way; nil for none
}

func newTokens(c *model.OAuth2, transport http.RoundTripper) *tokens {
	life, end := context.WithCancel(context.Background())
	return &tokens{
		life: life, end: end,
		flow: clientcredentials.Config{
			ClientID: c.ClientID, ClientSecret: c.ClientSecret.Reveal(), TokenURL: c.TokenURL, Scopes: c.Scopes,
		},
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       tokenTimeout,
		},
	}
}

// get returns the value of the header Authorization.
func (t *tokens) get(ctx context.Context) (string, error) {
	for {
		t.mu.Lock()
		now := time.Now()
		switch {
		case t.header != "" && (t.expires.IsZero() || now.Add(tokenEarly).Before(t.expires)):
			defer t.mu.Unlock()
			return t.header, nil
		case t.failed != nil && now.Sub(t.failedAt) < tokenPause:
			defer t.mu.Unlock()
			return "", t.failed
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
		t.header, t.dropped = "", now
	}
}

func (t *tokens) fetch() {
	ctx, cancel := context.WithTimeout(context.WithValue(t.life, oauth2.HTTPClient, t.client), 2*tokenTimeout)
	defer cancel()
	token, err := t.flow.Token(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.fetching)
	t.fetching = nil
	if err == nil && !validToken(token) {
		err = errors.New("the token cannot be in an HTTP header")
	}
	if t.failed = tokenError(err); err != nil {
		t.failedAt = time.Now()
		return
	}
	t.header, t.expires = token.Type()+" "+token.AccessToken, token.Expiry
	if !t.expires.IsZero() && time.Until(t.expires) <= tokenEarly {
		t.expires = time.Now().Add(tokenEarly + time.Second) // shorter ones are used for a second: otherwise they would never be used
	}
}

func validToken(t *oauth2.Token) bool {
	return t.AccessToken != "" && httpguts.ValidHeaderFieldValue(t.Type()+" "+t.AccessToken)
}

// isErrorCode reports whether text is an error code (RFC 6749, section 5.2), and short. Others are not
// shown: if they were cut or escaped, a secret in them would not be found and redacted.
func isErrorCode(text string) bool {
	const most = 100
	return len(text) <= most && strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) < 0
}

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
	case errors.As(err, &failed) && failed.ErrorCode != "" && isErrorCode(failed.ErrorCode):
		return fmt.Errorf("token_url answered %d: %s", failed.Response.StatusCode, failed.ErrorCode)
	case errors.As(err, &failed):
		return fmt.Errorf("token_url answered %d", failed.Response.StatusCode)
	}
	if sent := (*url.Error)(nil); errors.As(err, &sent) {
		err = sent.Err // without the URL
	}
	return fmt.Errorf("token_url: %w", err)
}
