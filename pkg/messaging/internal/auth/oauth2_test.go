package auth_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	rawauth "github.com/apache/pulsar-client-go/pulsar/auth"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/test/await"
)

const clientSecret = "correct-horse-battery-staple"

// issuer gives tokens token-1, token-2 and so on.
type issuer struct {
	*httptest.Server
	answer    func(http.ResponseWriter) // to a request for a token, in place of one
	expiresIn string                    // JSON, empty: not in the answer

	mu    sync.Mutex
	forms []string // of the requests for a token
}

func (is *issuer) asked() []string {
	is.mu.Lock()
	defer is.mu.Unlock()
	return slices.Clone(is.forms)
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	is := &issuer{expiresIn: "3600"}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"token_endpoint": is.URL + "/token"})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		is.mu.Lock()
		is.forms = append(is.forms, string(data))
		is.mu.Unlock()
		if is.answer != nil {
			is.answer(w)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		body := fmt.Sprintf(`{"access_token":"token-%d"`, len(is.asked()))
		if is.expiresIn != "" {
			body += `,"expires_in":` + is.expiresIn
		}
		_, _ = io.WriteString(w, body+"}")
	})
	is.Server = httptest.NewServer(mux)
	t.Cleanup(is.Close)
	return is
}

func keyFile(t *testing.T, issuer, secret string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key")
	writeKey(t, file, issuer, secret)
	return file
}

func writeKey(t *testing.T, file, issuer, secret string) {
	t.Helper()
	data, err := json.Marshal(map[string]string{"client_id": "aviary", "client_secret": secret, "issuer_url": issuer, "scope": "extra"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data, 0o600))
}

func provider(t *testing.T, cfg auth.OAuth2, timeout time.Duration) (rawauth.Provider, *auth.Faults) {
	t.Helper()
	faults := auth.NewFaults(zap.NewNop())
	p, err := auth.NewProvider(auth.Config{OAuth2: cfg}, timeout, faults)
	require.NoError(t, err)
	require.NoError(t, p.Init())
	return p, faults
}

func requireToken(t *testing.T, p rawauth.Provider, want string) {
	t.Helper()
	token, err := p.GetData()
	require.NoError(t, err)
	require.Equal(t, want, string(token))
}

func TestTokenIsKeptUntilItIsRefused(t *testing.T) {
	is := newIssuer(t)
	file := keyFile(t, is.URL+"/", clientSecret)
	p, faults := provider(t, auth.OAuth2{KeyFile: file, Audience: "urn:x", Scope: "produce  consume"}, await.Patience)
	requireToken(t, p, "token-1")
	requireToken(t, p, "token-1")
	require.Equal(t, []string{"audience=urn%3Ax&client_id=aviary&client_secret=" + clientSecret +
		"&grant_type=client_credentials&scope=produce+consume+extra"}, is.asked())

	// The key file is read again for each token.
	writeKey(t, file, is.URL, "another-secret")
	requireToken(t, p, "token-1")
	faults.Refused()
	requireToken(t, p, "token-2")
	require.Contains(t, is.asked()[1], "client_secret=another-secret")
	require.NoError(t, os.Remove(file))
	faults.Refused()
	_, err := p.GetData()
	require.ErrorContains(t, err, "cannot read key_file")
}

func TestTokenIsRenewedBeforeItExpires(t *testing.T) {
	for name, test := range map[string]struct {
		expiresIn string
		second    string
	}{
		"for hours":         {"7200", "token-1"},
		"as a text":         {`"7200"`, "token-1"},
		"expired":           {"-1", "token-2"},
		"without lifetime":  {"", "token-2"},
		"null as lifetime":  {"null", "token-2"},
		"zero as lifetime":  {"0", "token-2"},
		"beyond 32 bits":    {"99999999999", "token-1"},
		"within the second": {"1", "token-1"},
	} {
		t.Run(name, func(t *testing.T) {
			is := newIssuer(t)
			is.expiresIn = test.expiresIn
			p, _ := provider(t, auth.OAuth2{KeyFile: keyFile(t, is.URL, clientSecret)}, await.Patience)
			requireToken(t, p, "token-1")
			requireToken(t, p, test.second)
		})
	}
}

// An issuer that answers nothing, or that says it is unavailable, may be back later. One that
// refuses does not change its mind. No error quotes an answer that may hold a token.
func TestNoToken(t *testing.T) {
	says := func(status int, kind, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, test := range map[string]struct {
		answer      func(http.ResponseWriter)
		unavailable bool
		says        string
	}{
		"refused":       {says(401, "application/json", `{"error":"invalid_client","error_description":"no such\nclient"}`), false, "401 Unauthorized invalid_client no such client"},
		"refused, 200":  {says(200, "application/json", `{"error":"invalid_client"}`), false, "200 OK invalid_client"},
		"an error page": {says(403, "text/html", `<html>to-ken</html>`), false, "403 Forbidden"},
		"unavailable":   {says(503, "text/html", `<html>to-ken</html>`), true, "503 Service Unavailable"},
		"too often":     {says(429, "application/json", `{}`), true, "429 Too Many Requests"},
		"not JSON":      {says(200, "application/json", `{"access_token":"to-ken"`), false, "not the JSON expected"},
		"a number":      {says(200, "application/json", `{"access_token":"x","expires_in":"to-ken"}`), false, "not the JSON expected"},
		"a bad form":    {says(200, "text/plain", `access_token=%to-ken`), false, "not the JSON expected"},
		"no token":      {says(200, "application/json", `{"id_token":"to-ken"}`), false, "holds no access_token"},
		"sent on": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, false, "307 Temporary Redirect"},
		"cut off": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"access_token":"to-ken"`)
		}, true, "does not answer"},
		"no answer": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, true, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			is := newIssuer(t)
			is.answer = test.answer
			p, _ := provider(t, auth.OAuth2{KeyFile: keyFile(t, is.URL, clientSecret)}, await.Patience)
			_, err := p.GetData()
			require.ErrorContains(t, err, test.says)
			require.NotContains(t, err.Error(), "to-ken")
			require.NotContains(t, err.Error(), clientSecret)
			require.NotContains(t, err.Error(), "\n")
			if test.unavailable {
				require.ErrorIs(t, err, auth.ErrIssuerUnavailable)
			} else {
				require.NotErrorIs(t, err, auth.ErrIssuerUnavailable)
			}
			require.Len(t, is.asked(), 1, "asked once, and nowhere else")
		})
	}
}

func TestSilentIssuerIsGivenUp(t *testing.T) {
	gone := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	}))
	t.Cleanup(s.Close)
	p, _ := provider(t, auth.OAuth2{KeyFile: keyFile(t, s.URL, clientSecret)}, 50*time.Millisecond)
	_, err := p.GetData()
	require.ErrorIs(t, err, auth.ErrIssuerUnavailable)
	<-gone
}

func TestDiscoveryOfSomethingElse(t *testing.T) {
	for name, test := range map[string]struct {
		body string
		says string
	}{
		"a page":          {"<html>", "not the JSON expected"},
		"no address":      {"{}", "token_endpoint: must be an https URL"},
		"a plain address": {`{"token_endpoint":"http://elsewhere.example/token"}`, "token_endpoint: must be an https URL"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.body) }))
			t.Cleanup(s.Close)
			p, _ := provider(t, auth.OAuth2{KeyFile: keyFile(t, s.URL, clientSecret)}, await.Patience)
			_, err := p.GetData()
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestKeyFileIsChecked(t *testing.T) {
	for name, content := range map[string]string{
		"cannot read":                        "",
		"must be JSON with strings":          "[",
		"must hold client_id":                `{"client_id":"x"}`,
		"issuer_url: must be an https URL":   `{"client_id":"x","client_secret":"s3cret","issuer_url":"http://example.com"}`,
		"issuer_url: must be an https URL o": `{"client_id":"x","client_secret":"s3cret","issuer_url":"https://u:s3cret@example.com"}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "key")
			if content != "" {
				require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			}
			err := auth.CheckKeyFile(auth.OAuth2{KeyFile: file})
			require.ErrorContains(t, err, name)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
}
