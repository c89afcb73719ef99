package messaging_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestDefaultConfigIsValid(t *testing.T) {
	require.NoError(t, messaging.DefaultConfig().Validate())
	require.NoError(t, messaging.Config{}.Validate())
}

func TestConfigValidate(t *testing.T) {
	ca := newAuthority(t)
	own, others := ca.client(t, "orders"), ca.client(t, "orders")
	token := writeSecret(t, "t0ken")
	empty := writeSecret(t, " \n")
	none := filepath.Join(t.TempDir(), "eyJub25l")
	key := writeSecret(t, `{"client_id":"a","client_secret":"b","issuer_url":"https://issuer.example"}`)
	const plain, secure = "pulsar://a:6650", "pulsar+ssl://a:6651"

	for name, test := range map[string]struct {
		change func(*messaging.Config)
		faults []string // one line each, by prefix; none: valid
	}{
		"hosts":              {func(c *messaging.Config) { c.URL = "pulsar://a:6650,b:6650,[::1]:6650,c" }, nil},
		"scheme":             {func(c *messaging.Config) { c.URL = "http://a:8080" }, []string{"url: must start with pulsar://"}},
		"no host":            {func(c *messaging.Config) { c.URL = "pulsar://" }, []string{"url: must be host:port"}},
		"empty second host":  {func(c *messaging.Config) { c.URL = "pulsar://a:6650," }, []string{"url: must be host:port"}},
		"path":               {func(c *messaging.Config) { c.URL = "pulsar://a:6650/public" }, []string{"url: must be host:port"}},
		"port":               {func(c *messaging.Config) { c.URL = "pulsar://a:66500" }, []string{"url: must be host:port"}},
		"port zero":          {func(c *messaging.Config) { c.URL = "pulsar://a:0" }, []string{"url: must be host:port"}},
		"password in url":    {func(c *messaging.Config) { c.URL = "pulsar://me:hunter2@a:6650" }, []string{"url: must not hold credentials"}},
		"connect timeout":    {func(c *messaging.Config) { c.ConnectTimeout = -1 }, []string{"connect_timeout: must be > 0"}},
		"operation timeout":  {func(c *messaging.Config) { c.OperationTimeout = time.Millisecond }, []string{"operation_timeout: must be at least 1s"}},
		"keep alive":         {func(c *messaging.Config) { c.KeepAlive = time.Millisecond }, []string{"keep_alive: must be at least 1s"}},
		"connections":        {func(c *messaging.Config) { c.ConnectionsPerBroker = 65 }, []string{"connections_per_broker: must be from 1 to 64"}},
		"fewer connections":  {func(c *messaging.Config) { c.ConnectionsPerBroker = -1 }, []string{"connections_per_broker: must be from 1 to 64"}},
		"listener":           {func(c *messaging.Config) { c.ListenerName = "external" }, nil},
		"tls":                {func(c *messaging.Config) { c.URL, c.TLS.CAFile = secure, ca.file }, nil},
		"tls on plain url":   {func(c *messaging.Config) { c.TLS.Insecure = true }, []string{"tls: needs a pulsar+ssl url"}},
		"no ca file":         {func(c *messaging.Config) { c.URL, c.TLS.CAFile = secure, none }, []string{"tls.ca_file: must name a readable file: no such file"}},
		"ca file of no kind": {func(c *messaging.Config) { c.URL, c.TLS.CAFile = secure, token }, []string{"tls.ca_file: must name a readable file: " + token + " holds no PEM"}},
		"admin":              {func(c *messaging.Config) { c.AdminURL = "http://a:8080" }, nil},
		"admin, tls":         {func(c *messaging.Config) { c.AdminURL, c.TLS.CAFile = "https://[::1]:8443/", ca.file }, nil},
		"admin scheme":       {func(c *messaging.Config) { c.AdminURL = "pulsar://a:6650" }, []string{"admin_url: must be http://host:port or https://host:port, got"}},
		"admin without one":  {func(c *messaging.Config) { c.AdminURL = "a:8080" }, []string{"admin_url: must be http://host:port"}},
		"admin host":         {func(c *messaging.Config) { c.AdminURL = "http://:8080" }, []string{"admin_url: must be http://host:port"}},
		"admin port":         {func(c *messaging.Config) { c.AdminURL = "http://a:80800" }, []string{"admin_url: must be http://host:port"}},
		"admin path":         {func(c *messaging.Config) { c.AdminURL = "http://a:8080/admin/v2" }, []string{"admin_url: must be http://host:port"}},
		"admin query":        {func(c *messaging.Config) { c.AdminURL = "http://a:8080?x=y" }, []string{"admin_url: must be http://host:port"}},
		"password for admin": {func(c *messaging.Config) { c.AdminURL = "http://me:hunter2@a:8080" }, []string{"admin_url: must not hold credentials"}},
		"admin, certificate": {func(c *messaging.Config) { c.URL, c.Auth, c.AdminURL = secure, own, "http://127.0.0.1:8080" },
			[]string{"admin_url: must be https with auth.cert_file"}},
		"admin in the clear": {func(c *messaging.Config) { c.URL, c.Auth.Token, c.AdminURL = secure, "t0ken", "http://a:8080" },
			[]string{"admin_url: must be https, or http to this machine"}},
		"admin on this machine": {func(c *messaging.Config) { c.URL, c.Auth.Token, c.AdminURL = secure, "t0ken", "http://localhost:8080" }, nil},
		"token":                 {func(c *messaging.Config) { c.Auth.Token = "t0ken" }, nil},
		"token file":            {func(c *messaging.Config) { c.Auth.TokenFile = token }, nil},
		"no token file":         {func(c *messaging.Config) { c.Auth.TokenFile = none }, []string{"auth.token_file: must name a readable file: no such file"}},
		"empty token file":      {func(c *messaging.Config) { c.Auth.TokenFile = empty }, []string{"auth.token_file: must name a readable file: cannot read a secret: " + empty + " is empty"}},
		"two ways":              {func(c *messaging.Config) { c.Auth.Token, c.Auth.TokenFile = "t0ken", token }, []string{"auth: must hold one method, got token and token_file"}},
		"certificate":           {func(c *messaging.Config) { c.URL, c.Auth = secure, own }, nil},
		"certificate, plain":    {func(c *messaging.Config) { c.Auth = own }, []string{"auth.cert_file: needs a pulsar+ssl url"}},
		"certificate alone":     {func(c *messaging.Config) { c.URL, c.Auth.CertFile = secure, own.CertFile }, []string{"auth: must have both cert_file and key_file"}},
		"key alone":             {func(c *messaging.Config) { c.URL, c.Auth.KeyFile = secure, own.KeyFile }, []string{"auth: must have both cert_file and key_file"}},
		"another's key": {func(c *messaging.Config) {
			c.URL, c.Auth.CertFile, c.Auth.KeyFile = secure, own.CertFile, others.KeyFile
		},
			[]string{"auth: cert_file and key_file: tls: private key does not match"}},
		"no certificate files": {func(c *messaging.Config) { c.URL, c.Auth.CertFile, c.Auth.KeyFile = secure, none, none },
			[]string{"auth.cert_file: must name a readable file", "auth.key_file: must name a readable file"}},
		"oauth2": {func(c *messaging.Config) { c.Auth.OAuth2.KeyFile = key }, nil},
		"oauth2, issuer given": {func(c *messaging.Config) {
			c.Auth.OAuth2 = messaging.OAuth2{IssuerURL: "http://127.0.0.1:8080/realm", KeyFile: writeSecret(t, `{"client_id":"a","client_secret":"b"}`)}
		}, nil},
		"oauth2 without key": {func(c *messaging.Config) { c.Auth.OAuth2.Scope = "x" }, []string{"auth.oauth2.key_file: must be set"}},
		"oauth2, all wrong": {func(c *messaging.Config) {
			c.Auth.OAuth2 = messaging.OAuth2{IssuerURL: "http://issuer.example", CAFile: none}
		}, []string{"auth.oauth2.ca_file: must name", "auth.oauth2.issuer_url: must be an https URL, or http to this machine", "auth.oauth2.key_file: must be set"}},
		"issuer with a password": {func(c *messaging.Config) {
			c.Auth.OAuth2 = messaging.OAuth2{IssuerURL: "https://me:hunter2@issuer.example", KeyFile: key}
		}, []string{"auth.oauth2.issuer_url: must be an https URL of a host"}},
		"no oauth2 key":         {func(c *messaging.Config) { c.Auth.OAuth2.KeyFile = none }, []string{"auth.oauth2: cannot read key_file: no such file"}},
		"oauth2 key of no kind": {func(c *messaging.Config) { c.Auth.OAuth2.KeyFile = token }, []string{"auth.oauth2: key_file must be JSON"}},
		"oauth2 key, no secret": {func(c *messaging.Config) { c.Auth.OAuth2.KeyFile = writeSecret(t, `{"client_id":"a"}`) }, []string{"auth.oauth2: key_file must hold"}},
		"oauth2, no issuer": {func(c *messaging.Config) {
			c.Auth.OAuth2.KeyFile = writeSecret(t, `{"client_id":"a","client_secret":"b"}`)
		}, []string{"auth.oauth2: issuer_url: must be an https URL"}},
		"everything": {func(c *messaging.Config) {
			*c = messaging.Config{
				URL: "pulsar://a:b", AdminURL: "x", ConnectTimeout: -1, OperationTimeout: 1, KeepAlive: 1, ConnectionsPerBroker: 99,
				TLS:  messaging.TLS{CAFile: none},
				Auth: messaging.Auth{Token: "t0ken", TokenFile: none, CertFile: none, OAuth2: messaging.OAuth2{Audience: "x", CAFile: none}},
			}
		}, []string{"url:", "admin_url:", "connect_timeout:", "operation_timeout:", "keep_alive:", "connections_per_broker:", "tls.ca_file:", "auth.token_file:",
			"auth.cert_file:", "auth.oauth2.ca_file:", "auth: must hold one method", "auth: must have both", "auth.oauth2.key_file:"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := messaging.Config{URL: plain}
			test.change(&cfg)
			err := cfg.Validate()
			if test.faults == nil {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			lines := strings.Split(err.Error(), "\n")
			require.Len(t, lines, len(test.faults), err)
			for i, want := range test.faults {
				assert.True(t, strings.HasPrefix(lines[i], want), "got %q, want %q", lines[i], want)
			}
			for _, s := range []string{"hunter2", "t0ken", none} {
				assert.NotContains(t, err.Error(), s, "what may be a secret is not repeated")
			}
			_, dialed := messaging.Dial(t.Context(), cfg)
			require.ErrorContains(t, dialed, err.Error())
		})
	}
}

// A file that was good when the configuration was checked may be bad now.
func TestDialReadsCredentials(t *testing.T) {
	file := writeSecret(t, "x")
	cfg := messaging.Config{Auth: messaging.Auth{TokenFile: file}}
	require.NoError(t, cfg.Validate())
	require.NoError(t, os.Remove(file))
	_, err := messaging.Dial(t.Context(), cfg)
	require.ErrorContains(t, err, "auth.token_file")
}

func TestConfigNeverShowsTheToken(t *testing.T) {
	const token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
	cfg := messaging.DefaultConfig()
	cfg.Auth.Token = token
	tr := newTranscript()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, value := range []any{cfg, &cfg, cfg.Auth, &cfg.Auth, cfg.Auth.Token, struct{ Pulsar messaging.Config }{cfg}} {
			_, _ = fmt.Fprintf(tr, verb+"\n", value)
		}
	}
	asYAML, err := yaml.Marshal(cfg)
	require.NoError(t, err)
	asJSON, err := json.Marshal(cfg)
	require.NoError(t, err)
	_, _ = tr.Write(append(asYAML, asJSON...))
	tr.logger().Info("x", zap.Any("cfg", cfg), zap.Reflect("auth", cfg.Auth), zap.Stringer("token", cfg.Auth.Token))
	slog.New(slog.NewTextHandler(tr, nil)).InfoContext(context.Background(), "x", "cfg", cfg, "token", cfg.Auth.Token)
	slog.New(slog.NewJSONHandler(tr, nil)).InfoContext(context.Background(), "x", "cfg", cfg)
	require.Contains(t, tr.String(), "redacted")
	require.Contains(t, string(asYAML), "token: <redacted>")
	tr.requireNone(t, token, fmt.Sprintf("%x", token))

	var read messaging.Config
	require.NoError(t, yaml.Unmarshal([]byte("listener_name: external\nauth: {token: "+token+"}"), &read))
	require.Equal(t, token, read.Auth.Token.Reveal())
	require.Equal(t, "external", read.ListenerName)
}
