package kafka_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// unsigned is a token that the tests' broker takes.
func unsigned() string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	now := time.Now()
	return part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"sub":"aviary","iat":%d,"exp":%d}`, now.Unix(), now.Add(time.Hour).Unix())) + "."
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func TestSecurity(t *testing.T) {
	t.Parallel()
	const nobody = "127.0.0.1:9" // who connects to the upstream listener is sent there
	srv := stack.PrivateKafka(t, stack.Secured(), stack.Advertise(nobody))
	sec := srv.Security()
	var issued atomic.Int32
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, key, _ := r.BasicAuth()
		if id != "me" || key != "mine" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		issued.Add(1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"bearer","expires_in":3600}`, unsigned())
	}))
	t.Cleanup(issuer.Close)

	sasl := func(mechanism string) kafka.Connection {
		return kafka.Connection{Brokers: []string{sec.SASL}, SASL: kafka.SASL{Mechanism: mechanism, Username: sec.User, Password: secret.String(sec.Password)}}
	}
	fromFile := sasl("PLAIN")
	fromFile.SASL.Password, fromFile.SASL.PasswordFile = "", file(t, sec.Password+"\n")
	t.Run("ways", func(t *testing.T) {
		for name, way := range map[string]kafka.Connection{
			"PLAIN":         sasl("PLAIN"),
			"PLAIN, file":   fromFile,
			"SCRAM-SHA-256": sasl("SCRAM-SHA-256"),
			"SCRAM-SHA-512": sasl("SCRAM-SHA-512"),
			"OAUTHBEARER, file": {Brokers: []string{sec.SASL},
				SASL: kafka.SASL{Mechanism: "OAUTHBEARER", TokenFile: file(t, unsigned())}},
			"OAUTHBEARER, OAuth 2": {Brokers: []string{sec.SASL},
				SASL: kafka.SASL{Mechanism: "OAUTHBEARER", OAuth2: kafka.OAuth2{TokenURL: issuer.URL, ClientID: "me", ClientSecret: "mine"}}},
			"TLS":  {Brokers: []string{sec.TLS}, TLS: kafka.TLS{Enabled: true, TLS: connector.TLS{CAFile: sec.CAFile}}},
			"mTLS": {Brokers: []string{sec.MTLS}, TLS: kafka.TLS{Enabled: true, TLS: connector.TLS{CAFile: sec.CAFile, CertFile: sec.CertFile, KeyFile: sec.KeyFile}}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				topic := srv.Topic(t, 1)
				out, in := sinkConfig(srv, topic), sourceConfig(srv, topic+"-g", topic)
				out.Brokers, out.SASL, out.TLS = way.Brokers, way.SASL, way.TLS
				in.Brokers, in.SASL, in.TLS = way.Brokers, way.SASL, way.TLS
				require.NoError(t, runSink(t, out).send(t, "", &message.Message{Value: []byte("v")}))
				to := new(shelf)
				runSource(t, in, to)
				require.Eventually(t, func() bool { return to.count() == 1 }, await.Patience, 10*time.Millisecond)
				text, failed := tried(t, in, out)
				assert.Zero(t, failed, text)
			})
		}
	})
	assert.LessOrEqual(t, issued.Load(), int32(4), "one token serves many connections of a client")

	t.Run("advertised", func(t *testing.T) {
		t.Parallel()
		topic := srv.Topic(t, 1)
		out, in := sinkConfig(srv, topic), sourceConfig(srv, topic+"-g", topic)
		out.Brokers, in.Brokers = []string{srv.Upstream()}, []string{srv.Upstream()}
		text, failed := tried(t, in, out)
		assert.Equal(t, 5, failed, text)
		assert.Regexp(t, `sink\.brokers .*: failed: broker \d+ announces the address `+nobody+` \(advertised\.listeners\): .*connection refused`,
			text)
	})

	wrong := sasl("SCRAM-SHA-256")
	wrong.SASL.Password = "wrong"
	plain := sasl("PLAIN")
	plain.SASL.Username = "nobody"
	for name, way := range map[string]kafka.Connection{
		"wrong password":     wrong,
		"wrong user":         plain,
		"unknown authority":  {Brokers: []string{sec.TLS}, TLS: kafka.TLS{Enabled: true}},
		"no certificate":     {Brokers: []string{sec.MTLS}, TLS: kafka.TLS{Enabled: true, TLS: connector.TLS{CAFile: sec.CAFile}}},
		"no TLS":             {Brokers: []string{sec.TLS}},
		"no credentials":     {Brokers: []string{sec.SASL}},
		"another's hostname": {Brokers: []string{sec.TLS}, TLS: kafka.TLS{Enabled: true, TLS: connector.TLS{CAFile: sec.CAFile, ServerName: "elsewhere.example"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := srv.Topic(t, 1)
			out, in := sinkConfig(srv, topic), sourceConfig(srv, topic+"-g", topic)
			out.Brokers, out.SASL, out.TLS = way.Brokers, way.SASL, way.TLS
			in.Brokers, in.SASL, in.TLS = way.Brokers, way.SASL, way.TLS
			text, failed := tried(t, in, out)
			assert.Equal(t, 5, failed, text)
			assert.NotContains(t, text, sec.Password)
			t.Log(text)
			source, sink := runSource(t, in, new(shelf)), runSink(t, out)
			for _, r := range []*running{source, sink} {
				require.Eventually(t, func() bool { _, err := r.last(); return err != nil }, await.Patience, 10*time.Millisecond)
				_, err := r.last()
				t.Log(err)
				require.ErrorContains(t, err, way.Brokers[0])
				assert.NotContains(t, err.Error(), sec.Password)
			}
			// Others go on meanwhile.
			require.NoError(t, runSink(t, sinkConfig(srv, topic)).send(t, "", &message.Message{Value: []byte("v")}))
			require.NoError(t, source.stop(t))
			require.NoError(t, sink.stop(t))
		})
	}
}

// tried has -config.connect's trials of a source and a sink made.
func tried(t *testing.T, in kafka.SourceConfig, out kafka.SinkConfig) (text string, failed int) {
	t.Helper()
	source, endSource := in.Try("source")
	defer endSource()
	sink, endSink := out.Try("sink", []trial.Place{{}})
	defer endSink()
	var lines strings.Builder
	_, failed = trial.Run(t.Context(), []trial.Trial{source, sink}, &lines)
	return lines.String(), failed
}
