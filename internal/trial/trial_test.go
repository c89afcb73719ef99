package trial_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m.Run) }

func result(err error) func(context.Context) error { return func(context.Context) error { return err } }

// Every trial has its line, in their order. The result of one that failed begins with "failed:", and
// trials behind it are "not tried". Passwords are redacted.
func TestLines(t *testing.T) {
	var out strings.Builder
	tried, failed := trial.Run(t.Context(), []trial.Trial{
		{Name: "a.url redis://u:hunter2@h:1", Try: result(nil), Then: []trial.Trial{
			{Name: "topic x", Try: result(trial.Note("does not exist yet"))},
			{Name: "topic y", Try: result(errors.New("messaging: one\ntwo at amqp://u:hunter2@h"))},
		}},
		{Name: "b.url", Try: result(errors.New("NOAUTH")), Then: []trial.Trial{
			{Name: "topic z", Try: result(nil), Then: []trial.Trial{{Name: "subscription s", Try: result(nil)}}},
		}},
		{Name: "c", Try: result(trial.Notef("%d", 7)), Then: []trial.Trial{{Name: "d", Try: result(nil)}}},
	}, &out)
	assert.Equal(t, 8, tried)
	assert.Equal(t, 4, failed)
	assert.Equal(t, `  a.url redis://u:<redacted>@h:1: ok
  topic x: note: does not exist yet
  topic y: failed: one; two at amqp://u:<redacted>@h
  b.url: failed: NOAUTH
  topic z: not tried: the check above failed
  subscription s: not tried: the check above failed
  c: note: 7
  d: ok
`, out.String())
}

// Trials are made side by side, and one that does not end is given up.
func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deaf := make(chan struct{})
		hang := func(context.Context) error { <-deaf; return nil }
		wait := func(ctx context.Context) error { <-ctx.Done(); return errors.Join(errors.New("connecting"), ctx.Err()) }
		var trials []trial.Trial
		for range 10 {
			trials = append(trials, trial.Trial{Name: "deaf", Try: hang}, trial.Trial{Name: "slow", Try: wait}, trial.Trial{
				Name: "late", Try: func(context.Context) error { time.Sleep(trial.Timeout - time.Second); return nil },
				Then: []trial.Trial{{Name: "then", Try: wait}},
			})
		}
		began := time.Now()
		var out strings.Builder
		tried, failed := trial.Run(t.Context(), trials, &out)
		assert.Equal(t, []int{40, 30}, []int{tried, failed})
		assert.Less(t, time.Since(began), 15*time.Second)
		assert.Contains(t, out.String(), "deaf: failed: no answer within 5s (context deadline exceeded)\n")
		assert.Contains(t, out.String(), "slow: failed: no answer within 5s (connecting; context deadline exceeded)\n")
		close(deaf)
	})
}

// A cluster that is unavailable is said to be unavailable, and nothing behind it is tried.
func TestPulsarUnavailable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	cfg := messaging.DefaultConfig()
	cfg.URL = "pulsar://" + l.Addr().String()
	one, end := trial.Pulsar("pulsar", cfg, func(c *messaging.Client) []trial.Trial {
		return []trial.Trial{trial.Publish(c, "topic", "t")}
	})
	defer end()
	var out strings.Builder
	_, failed := trial.Run(t.Context(), []trial.Trial{one}, &out)
	assert.Equal(t, 2, failed)
	assert.Equal(t, "  pulsar.url "+cfg.URL+": failed: connect: dial tcp "+l.Addr().String()+": connect: connection refused\n"+
		"  topic t: not tried: the check above failed\n", out.String())
}

// A role that is no admin of the tenant may not make topics: that is a fault where the service has
// to. Brokers of the tests have no roles, so the answer of the admin API is made here.
func TestTenantAdmin(t *testing.T) {
	status := http.StatusForbidden
	var retentions atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/retention") {
			retentions.Add(1)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(api.Close)
	cfg := messaging.DefaultConfig()
	cfg.AdminURL = api.URL
	client, err := messaging.Dial(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close(context.Background())) })
	for status = range map[int]bool{http.StatusForbidden: true, http.StatusNotFound: true, http.StatusNoContent: true} {
		var out strings.Builder
		ns := trial.NewNamespace(client, "ns", "public/default")
		retentions.Store(0)
		trial.Run(t.Context(), append(ns.Policies(false, "a", "b"), ns.TenantAdmin()), &out)
		assert.EqualValues(t, 1, retentions.Load(), "asked once for two trials")
		if status == http.StatusForbidden {
			assert.Contains(t, out.String(), "ns public/default, deduplication: note: not known: only an admin of the tenant may ask")
			assert.Contains(t, out.String(), "ns public/default, admin: failed: with admin_url the service makes topics, and only an admin of the tenant may: this role is not one")
		} else {
			assert.Contains(t, out.String(), "ns public/default, admin: ok\n")
		}
	}
}
