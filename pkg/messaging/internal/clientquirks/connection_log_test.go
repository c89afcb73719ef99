package clientquirks_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

type observation struct {
	broker string
	step   clientquirks.ConnectStep
	err    error
}

type observer struct {
	connected chan string
	failed    chan observation
}

func newObserver() observer {
	return observer{connected: make(chan string, 100), failed: make(chan observation, 100)}
}

func (o observer) Connected(broker string) { o.connected <- broker }
func (o observer) ConnectFailed(broker string, step clientquirks.ConnectStep, err error) {
	select {
	case o.failed <- observation{broker, step, err}:
	default:
	}
}

func (o observer) observe(c *pulsar.ClientOptions) {
	c.Logger = clientquirks.ObserveConnections(log.DefaultNopLogger(), o)
	c.OperationTimeout = 100 * time.Millisecond
}

func TestConnectionIsObserved(t *testing.T) {
	s, o := start(t), newObserver()
	_, err := connect(t, s.URL(), o.observe).TopicPartitions(topic)
	require.NoError(t, err)
	require.Equal(t, strings.TrimPrefix(s.URL(), "pulsar://"), <-o.connected)
	require.Empty(t, o.failed)
}

// answering is a server that answers the first bytes of each connection, and closes it.
func answering(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1000))
			_, _ = io.WriteString(c, answer)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "pulsar://" + l.Addr().String()
}

func TestFailedConnectionsAreObserved(t *testing.T) {
	var asked atomic.Bool
	noToken := pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
		if !asked.Swap(true) { // by NewClient
			return "token", nil
		}
		return "", errors.New("no token")
	})
	withoutToken := func(o *pulsar.ClientOptions) { o.Authentication = noToken }
	withoutCA := func(o *pulsar.ClientOptions) { o.TLSTrustCertsFilePath = "none" }
	// BaseCommand: type ERROR (14), error (14): request_id 0, AuthenticationError, message.
	refusal := "\x00\x00\x00\x15\x00\x00\x00\x11\x08\x0e\x72\x0d\x08\x00\x10\x03\x1a\x07refused"
	for name, c := range map[string]struct {
		url    string
		change func(*pulsar.ClientOptions)
		step   clientquirks.ConnectStep
		text   string
	}{
		"nobody listens":  {"pulsar://127.0.0.1:1", nil, clientquirks.StepConnect, "refused"},
		"no answer":       {answering(t, ""), nil, clientquirks.StepConnect, ""},
		"an error":        {answering(t, refusal), nil, clientquirks.StepRefused, `the broker says "refused"`},
		"no credentials":  {answering(t, ""), withoutToken, clientquirks.StepCredentials, "no token"},
		"no certificates": {"pulsar+ssl://127.0.0.1:1", withoutCA, clientquirks.StepTLSFiles, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newObserver()
			client := connect(t, c.url, func(options *pulsar.ClientOptions) {
				o.observe(options)
				if c.change != nil {
					c.change(options)
				}
			})
			_, err := client.TopicPartitions(topic)
			require.ErrorContains(t, err, "connection error")
			failed := <-o.failed
			_, broker, _ := strings.Cut(c.url, "://")
			require.Equal(t, broker, failed.broker)
			require.Equal(t, c.step, failed.step)
			require.ErrorContains(t, failed.err, c.text)
			require.Empty(t, o.connected)
		})
	}
}
