package target

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

const (
	// tokenTimeout bounds one request for a token, whoever waits for it.
	tokenTimeout = 10 * time.Second
	// tokenEarly is how long before its end a token is not used any more.
	tokenEarly = 10 * time.Second
	// tokenPause is how long a failure is told to others who ask before the next request, and how long a token is kept at least that comes in the place
	// of one that was not accepted: a receiver that accepts none must not make a request for a token of each delivery.
	tokenPause = time.Second
)

// tokens fetches and keeps one access token of the client credentials flow. It is safe for concurrent use: of several who need a new one, one request
// serves all.
type tokens struct {
	flow   clientcredentials.Config
	client *http.Client
	life   context.Context // of requests
	end    context.CancelFunc

	mu       sync.Mutex
	header   string    // "Bearer xyz", empty for none
	expires  time.Time // zero: never
	failed   error     // of the last request
	failedAt time.Time
	dropped  time.Time     // when a token was dropped last
	fetching chan struct{} // closed at the end of the request under way; nil for none
}

func newTokens(c *registry.OAuth2, transport http.RoundTripper) *tokens {
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
			go t.fetch() // not the caller's: others wait for it when the caller's time is over
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

// drop has the next get fetch a new token, unless that was done since header was taken, or a moment ago.
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
		t.expires = time.Now().Add(tokenEarly + time.Second) // shorter ones are used for a second, or none would be
	}
}

func validToken(t *oauth2.Token) bool {
	return t.AccessToken != "" && httpguts.ValidHeaderFieldValue(t.Type()+" "+t.AccessToken)
}

// tokenError is for people: short, and without what the server sent besides its code.
func tokenError(err error) error {
	var failed *oauth2.RetrieveError
	var refused *RefusedAddress
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return fmt.Errorf("token_url: %w", refused)
	case errors.As(err, &failed) && failed.ErrorCode != "":
		return fmt.Errorf("token_url answered %d: %.100q", failed.Response.StatusCode, failed.ErrorCode)
	case errors.As(err, &failed):
		return fmt.Errorf("token_url answered %d", failed.Response.StatusCode)
	}
	if sent := (*url.Error)(nil); errors.As(err, &sent) {
		err = sent.Err // without the URL
	}
	return fmt.Errorf("token_url: %w", err)
}
