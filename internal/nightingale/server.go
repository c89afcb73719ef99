package nightingale

import (
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"
	"golang.org/x/net/netutil"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// maxHeader bounds a request's headers. Past it: 431.
const maxHeader = 64 << 10

// newServer is the server for senders. Slow ones are cut off by the time that a
// request may take, headers and body. The server itself counts it, so that it holds
// for requests that are not authenticated, and for those of unknown paths and
// methods, whose bodies the server reads to keep the connection. It ends with the
// body, see liftDeadline.
func newServer(cfg Config, m *metrics, handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: cfg.Limits.ReadTimeout,
		ReadTimeout:       cfg.Limits.ReadTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         m.connState,
	}
}

// limitConnections makes later senders wait, in the system's queue, until one of the
// others has gone.
func limitConnections(ln net.Listener, l Limits) net.Listener {
	if l.Connections == 0 {
		return ln
	}
	return netutil.LimitListener(ln, l.Connections)
}

// serve returns what serves: plain HTTP, or what the web configuration file says. The
// file is read again at each connection and request.
func (c HTTPConfig) serve(log *zap.Logger, server *http.Server) func(net.Listener) error {
	if c.WebConfigFile == "" {
		return server.Serve
	}
	logger := slog.New(slogHandler{log: log})
	return func(ln net.Listener) error {
		return web.Serve(ln, server, &web.FlagConfig{WebConfigFile: &c.WebConfigFile}, logger)
	}
}

// check returns what is wrong with the files that the configuration names.
func (c HTTPConfig) check() error {
	if c.WebConfigFile == "" {
		return nil
	}
	if err := web.Validate(c.WebConfigFile); err != nil {
		return config.Fault("http.web_config_file", "%s: %v", c.WebConfigFile, err)
	}
	if len(c.BearerTokens) == 0 && c.BearerTokenFile == "" {
		return nil
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
	if len(file.Users) > 0 {
		return config.Fault("http.web_config_file", "has basic_auth_users, which cannot be combined with bearer tokens: a request has one Authorization header")
	}
	return nil
}

// Validate returns every fault of the server's keys.
func (c HTTPConfig) Validate() error {
	if slices.Contains(c.BearerTokens, "") {
		return config.Fault("bearer_tokens", "must not be empty")
	}
	return nil
}

// tokens are the bearer tokens that may write.
type tokens struct {
	fixed []secret.String
	file  string

	mu       sync.Mutex
	fromFile []secret.String
	readAt   time.Time
}

// rereadTokens is how long a token's file is taken to be unchanged.
const rereadTokens = 10 * time.Second

// newTokens returns nil when no token is asked for.
func newTokens(c HTTPConfig) (*tokens, error) {
	if len(c.BearerTokens) == 0 && c.BearerTokenFile == "" {
		return nil, nil //nolint:nilnil // nil is the tokens that nobody needs
	}
	t := &tokens{fixed: c.BearerTokens, file: c.BearerTokenFile}
	if t.file == "" {
		return t, nil
	}
	read, err := readTokens(t.file)
	if err != nil {
		return nil, config.Fault("http.bearer_token_file", "%v", err)
	}
	t.fromFile, t.readAt = read, time.Now()
	return t, nil
}

// readTokens reads a file of tokens, one on each line.
func readTokens(file string) ([]secret.String, error) {
	text, err := secret.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []secret.String
	for line := range strings.Lines(text.Reveal()) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, secret.String(line))
		}
	}
	return all, nil
}

// current returns the tokens, the file's as of not long ago. A file that cannot be
// read for a moment leaves those that were there before.
func (t *tokens) current() []secret.String {
	if t.file == "" {
		return t.fixed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.readAt) >= rereadTokens {
		t.readAt = now
		if read, err := readTokens(t.file); err == nil {
			t.fromFile = read
		}
	}
	return slices.Concat(t.fixed, t.fromFile)
}

var errUnauthorized = &refusal{status: http.StatusUnauthorized, reason: "unauthorized", text: "a valid bearer token is needed"}

// check tells whether the request has one of the tokens. It compares with all of
// them, so that the time says nothing.
func (t *tokens) check(r *http.Request) error {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return errUnauthorized
	}
	found := 0
	for _, token := range t.current() {
		if token.Equal(secret.String(strings.TrimSpace(given))) {
			found++
		}
	}
	if found == 0 {
		return errUnauthorized
	}
	return nil
}

// guard asks for a token, where one is needed, before anything of a request is read.
func (v *receiver) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		if t := v.settings.Load().tokens; t != nil {
			err = t.check(r)
		}
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="nightingale"`)
		v.metrics.requests.WithLabelValues(strconv.Itoa(v.answer(w, r, err))).Inc()
	})
}
